"""What a run is asked to be."""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from agentic_trading.errors import TradingError
from agentic_trading.llm.limits import NANO

Mode = Literal["backtest", "paper"]
ProviderName = Literal["rules", "recorded"]


class OptionError(TradingError, ValueError):
    """An option of a run is wrong: `option` names it, `was` its value, `allowed` what it may be."""

    def __init__(self, option: str, was: object, allowed: str) -> None:
        self.option = option
        self.was = was
        self.allowed = allowed
        super().__init__(f"{option} is {was}; allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run: its market data, its mode, who answers, and how much it may use.

    `data` names samples, CSV files, or `-` for lines on standard input. `bars` limits the bars of each symbol.
    `inject` is a list of faults such as `malformed=5%,timeout=2%`; `seed` fixes which calls they hit. `models_file`
    adds rows to the table of models.
    Raises `OptionError` for values that no run can have.
    """

    data: tuple[str, ...]
    out: Path
    mode: Mode = "backtest"
    provider: ProviderName = "rules"
    recorded_from: Path | None = None
    bars: int | None = None
    budget_usd: Decimal = Decimal(5)
    workers: int = 4
    inject: str = ""
    seed: str = "1"
    resume: bool = False
    models_file: Path | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without looking at a file."""
        if not self.data:
            raise OptionError("--data", "empty", "a sample's name, a CSV file, or - for standard input")
        if self.bars is not None and self.bars < 1:
            raise OptionError("--bars", self.bars, "1 and more")
        if not self.budget_usd.is_finite() or not LEAST_BUDGET_USD <= self.budget_usd <= MOST_BUDGET_USD:
            allowed = f"an amount above 0, up to {MOST_BUDGET_USD}: with nothing to spend no call is made"
            raise OptionError("--budget-usd", self.budget_usd, allowed)
        if not 1 <= self.workers <= MOST_WORKERS:
            raise OptionError("--workers", self.workers, f"1 to {MOST_WORKERS}")
        if (self.provider == "recorded") != (self.recorded_from is not None):
            was = self.recorded_from or "left out"
            raise OptionError("--from", was, "a session's folder, together with --provider recorded")
        if self.provider == "recorded" and self.inject:
            allowed = "faults in live answers; a recording holds the faults of its own run"
            raise OptionError("--inject", repr(self.inject), allowed)

    @property
    def budget_nusd(self) -> int:
        """The budget in whole nano-dollars, rounded down."""
        return int(self.budget_usd * NANO)


MOST_WORKERS = 256
LEAST_BUDGET_USD = Decimal("1e-9")
MOST_BUDGET_USD = 9_000_000
"""In nano-dollars still below 2^53, up to where every reader of the log counts exactly."""

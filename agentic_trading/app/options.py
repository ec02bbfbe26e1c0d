"""What a run is asked to be."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Final, Literal, assert_never
from urllib.parse import urlsplit

from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.provider import address_text, fault_of
from agentic_trading.platform.settings import Settings

RunMode = Literal["backtest", "paper"]
Estimate = Literal["bound", "exact"]

HOSTED: Final = tuple(
    provider.value
    for provider in LLMProvider
    if provider not in {LLMProvider.LOCAL, LLMProvider.RULES, LLMProvider.SCRIPTED}
)
"""Providers that are reached over a network."""

MODELS: Final = (*HOSTED, LLMProvider.LOCAL.value)
"""Providers with a model: calls take time, and may cost money."""

PROVIDERS: Final = (LLMProvider.RULES.value, "recorded", *MODELS)
"""What `--provider` may be."""


DEFAULT_BUDGET_USD = Decimal(5)


class OptionError(TradingError, ValueError):
    """An option of a run is wrong: `option` names it, `was` its value, `allowed` what it may be."""

    def __init__(self, option: str, was: object, allowed: str) -> None:
        self.option = option
        self.was = was
        self.allowed = allowed
        super().__init__(f"{option} is {was}; allowed: {allowed}")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run: its market data, its mode, its provider, and how much it may use.

    `data` names samples, CSV files, or `-` for lines on standard input. `bars` limits the bars of each symbol, not
    counting the first `warm_up` ones. `inject` is a list of faults such as `malformed=5%,timeout=2%`; `seed` fixes which calls they hit. `models_file` and
    `prices_file` add rows to the tables of models and prices. An empty `model` is the provider's default, `base_url`
    None its own address. `record` lets a backtest use a network; `max_calls` counts attempts, and
    `settings` hold keys and folders. `ledger_url` is a server whose ledger is used in place of one of the run's own;
    the limit that is set there goes before a budget that was not given. `policy_file` says who may do what, `principal` is the one that the run's agents run as. `estimate`
    says how much is reserved for a call: by the bytes of its request, or by the provider's own count.
    Raises `OptionError` for values that no run can have.
    """

    data: tuple[str, ...]
    out: Path
    mode: RunMode = "backtest"
    provider: str = "rules"
    recorded_from: Path | None = None
    bars: int | None = None
    warm_up: int = 0
    budget_usd: Decimal = DEFAULT_BUDGET_USD
    workers: int = 4
    inject: str = ""
    seed: str = "1"
    resume: bool = False
    models_file: Path | None = None
    prices_file: Path | None = None
    model: str = ""
    base_url: str | None = None
    record: bool = False
    max_calls: int | None = None
    settings: Settings | None = None
    ledger_url: str | None = None
    budget_is_given: bool = True
    policy_file: Path | None = None
    principal: str = ""
    estimate: Estimate = "bound"

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
        if self.provider not in PROVIDERS:
            raise OptionError("--provider", repr(self.provider), listed(PROVIDERS))
        if (self.provider == "recorded") != (self.recorded_from is not None):
            was = self.recorded_from or "left out"
            raise OptionError("--from", was, "a session's folder, together with --provider recorded")
        if self.provider == "recorded" and self.inject:
            allowed = "faults in live answers; a recording holds the faults of its own run"
            raise OptionError("--inject", repr(self.inject), allowed)
        self._check_calls()
        self._check_model()
        self._check_addresses()

    def _check_calls(self) -> None:
        if self.max_calls is not None and self.provider == "recorded":
            allowed = "a limit on live calls; a recording holds what its own run was refused"
            raise OptionError("--max-calls", self.max_calls, allowed)
        if self.max_calls is not None and self.max_calls < 1:
            raise OptionError("--max-calls", self.max_calls, "1 and more")
        if self.provider in HOSTED and self.mode == "backtest" and not self.record:
            allowed = f"--record with --provider {self.provider}: a backtest uses a network only with it"
            raise OptionError("--record", "left out", allowed)

    def _check_model(self) -> None:
        if self.model and self.provider not in MODELS:
            raise OptionError("--model", repr(self.model), f"a model of {listed(MODELS)}")
        if self.base_url is not None and self.provider not in HOSTED:
            raise OptionError(
                "--base-url", "given", f"the address of a server with --provider {listed(HOSTED)}"
            )

    def _check_addresses(self) -> None:
        if self.base_url is not None:
            check_url("--base-url", self.base_url)
        if self.ledger_url is not None:
            check_ledger_url(self.ledger_url)

    @property
    def is_repeatable(self) -> bool:
        """Whether the run asks nothing outside of this process and goes by no real time: it can be had again."""
        return self.mode == "backtest" and self.provider not in MODELS

    @property
    def most_bars(self) -> int | None:
        """How many bars of each symbol the run is fed at most, those that warm it up among them."""
        return None if self.bars is None else self.warm_up + self.bars

    @property
    def budget_nusd(self) -> int:
        """The budget in whole nano-dollars, rounded down."""
        return int(self.budget_usd * NANO)


def listed(names: Sequence[str]) -> str:
    """Return at least two names as a list: `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def check_url(option: str, url: str) -> None:
    """Raise `OptionError` for what is no address of a server; one with a password in it is not shown."""
    allowed = "http:// or https://, a host, and where the API begins, without user and password"
    match fault_of(url):
        case "":
            return
        case "secret":
            raise OptionError(option, "an address with a password in it", allowed)
        case "no_address":
            raise OptionError(option, address_text(url), allowed)
        case fault:
            assert_never(fault)


def check_ledger_url(url: str) -> None:
    """Raise `OptionError` for what is no address of a ledger's server; the address itself is not shown."""
    try:
        parts = urlsplit(url)
        place = parts.path if parts.scheme == "unix" else parts.hostname
        is_one = parts.scheme in LEDGER_SCHEMES and bool(place) and parts.port != 0 and not parts.query
    except ValueError:  # a port that is none
        is_one = False
    if not is_one:
        allowed = "redis://HOST:PORT, rediss://HOST:PORT or unix://PATH, without options behind a ?"
        raise OptionError("--ledger", "an address of nothing that can be a ledger's server", allowed)


MOST_WORKERS = 256
LEDGER_SCHEMES = frozenset({"redis", "rediss", "unix"})
WARM_UP_BARS = 12 * 26 - 1
"""Five-minute bars until an analyst can be asked for the first time, but for the last one: a trend needs the average of
21 hours, five times in a row."""
LEAST_BUDGET_USD = Decimal("1e-9")
MOST_BUDGET_USD = 9_000_000
"""In nano-dollars still below 2^53, up to where every reader of the log counts exactly."""


def pluralize(number: int, noun: str) -> str:
    """Spell how many there are: `1 bar`, `2,576 bars`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

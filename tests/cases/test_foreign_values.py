"""Values of other libraries in context and evidence: taken by value if exact, else refused with field and reason."""

import enum
import json
import runpy
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from agentic_trading.canonical import canonical_bytes, exact_bytes
from agentic_trading.llm import EnvelopeBuilder, EnvelopeValidationError, LLMEnvelope, LLMProvider
from tests.cases.answering import PUBLIC


class _Prints:
    """A value that prints something else."""

    @override
    def __repr__(self) -> str:
        return "something else"

    __str__ = __repr__


class _Float(_Prints, float): ...


class _Int(_Prints, int): ...


class _Text(_Prints, str):
    __slots__ = ()


class _Decimal(_Prints, Decimal): ...


class _Date(_Prints, date): ...


class _Side(str, enum.Enum):  # noqa: UP042 - it prints `_Side.BUY`
    BUY = "BUY"


class _Size(_Float, enum.Enum):
    HALF = 0.5


class _Moment(datetime):
    """As pandas' Timestamp."""

    nanosecond = 0


class _Finer(_Moment):
    nanosecond = 1


class _Broken:
    @override
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def _with_context(value: Any) -> EnvelopeBuilder:
    return _builder().with_context({"x": value})


def _with_evidence(value: Any) -> EnvelopeBuilder:
    return _builder().add_evidence("indicators", {"x": value})


def _builder() -> EnvelopeBuilder:
    builder = EnvelopeBuilder().for_analysis().with_instructions("Judge.")
    return builder.with_provider(LLMProvider.SCRIPTED, "scripted-1")


WAYS = [_with_context, _with_evidence]
Way = Callable[[Any], EnvelopeBuilder]


def _sent(envelope: LLMEnvelope) -> Any:
    wire = json.loads(envelope.wire)
    return wire["context"]["x"] if wire["context"] else wire["retrieved_evidence"][0]["content"]["x"]


def test_numpy_number_is_hashed_by_value(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(PUBLIC / "o14_numpy_number.py"))

    assert capsys.readouterr().out == "0\n"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(62.3), 62.3),
        (np.float64(1e-7), 1e-7),
        (np.float64(2.0), 2),
        (np.float32(0.1), 0.10000000149011612),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(-5), -5),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),  # noqa: FBT003 - the only form of it
        (np.str_("y"), "y"),
        (_Float(1.5), 1.5),
        (_Int(5), 5),
        (_Int(2**64), 2**64),
        (_Text("x"), "x"),
        (_Decimal("1.50"), "1.50"),
        (_Date(2026, 1, 2), "2026-01-02"),
        (_Moment(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (_Side.BUY, "BUY"),
        (_Size.HALF, 0.5),
        (Fraction(1, 4), 0.25),
        ({_Text("a"): _Float(1.5)}, {"a": 1.5}),
        ({_Side.BUY: [np.float64(1.5)]}, {"BUY": [1.5]}),
    ],
)
def test_foreign_value_is_taken_by_value(way: Way, value: Any, plain: Any) -> None:
    envelope = way(value).build()

    assert _sent(envelope) == plain
    assert envelope.request_hash == way(plain).build().request_hash


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.float64("nan"), "is not a JSON number"),
        (np.float32("inf"), "is not a JSON number"),
        (_Float("nan"), "is not a JSON number"),
        (Fraction(1, 3), "a double does not hold it exactly"),
        (Fraction(10**400), "too large"),
        (np.array([1.0]), "ndarray"),
        (np.datetime64("2026-01-01"), "datetime64"),
        (np.complex128(1j), "complex128"),
        (_Finer(2026, 1, 1, tzinfo=UTC), "it has nanoseconds"),
        (_Moment(2026, 1, 1), "no time zone"),
        (timedelta(1), "timedelta"),
        (_Decimal("NaN"), "not a number"),
        (_Int(10**21), "more than 21 digits"),
        (_Broken(), "a _Broken has no JSON spelling"),
        ({5: 1}, "the key 5 is not a string"),
        ({_Broken(): 1}, "the key a _Broken is not a string"),
    ],
)
def test_inexact_value_error_names_field(way: Way, value: Any, reason: str) -> None:
    with pytest.raises(
        EnvelopeValidationError, match=r"(context|retrieved_evidence\.0\.content): \$\.x"
    ) as e:
        way(value).build()

    assert reason in str(e.value)


NUMBERS = st.floats() | st.integers(-(2**63), 2**63 - 1) | st.floats(width=32).map(np.float32)


@given(NUMBERS, st.sampled_from([np.float64, np.float32, np.int64, _Float, lambda number: number]))
def test_numpy_number_is_exact_or_refused(number: Any, kind: Callable[[Any], Any]) -> None:
    try:
        with np.errstate(all="ignore"):
            foreign = kind(number)
    except (ValueError, OverflowError):  # no integer
        return
    try:
        envelope = _with_context(foreign).build()
    except EnvelopeValidationError:
        assert not np.isfinite(foreign)
        return

    plain = foreign.item() if isinstance(foreign, np.generic) else foreign
    plain = float.__float__(plain) if isinstance(plain, float) else plain
    assert envelope.context_json == _with_context(plain).build().context_json


def test_datetime_subclass_is_sent_as_datetime() -> None:
    at = _Moment(2026, 1, 2, tzinfo=UTC)

    envelope = _builder().with_as_of(at).add_evidence("a", {"b": 1}, available_at=at).build()

    assert (
        envelope.request_hash
        == _builder()
        .with_as_of(datetime(2026, 1, 2, tzinfo=UTC))
        .add_evidence("a", {"b": 1}, available_at=datetime(2026, 1, 2, tzinfo=UTC))
        .build()
        .request_hash
    )
    with pytest.raises(EnvelopeValidationError, match="it has nanoseconds"):
        _builder().with_as_of(_Finer(2026, 1, 2, tzinfo=UTC)).build()


def test_exact_json_serializes_subclass_values() -> None:
    value = {_Text("a"): [_Int(10**30), _Decimal("1.50"), _Text("x")]}

    assert exact_bytes(value) == b'{"a":[1000000000000000000000000000000,1.50,"x"]}'
    assert canonical_bytes([np.float64(2.5)]) == b"[2.5]"

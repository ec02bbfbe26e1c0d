"""The instance of a model holds what the answer says: a protected property is not left out of it in silence."""

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    ValidationInfo,
    field_validator,
)

from agentic_trading.llm.result import Stage
from agentic_trading.structured import Accepted, Rejected, read, validate
from agentic_trading.structured.prompts import reask_request
from tests.build import response
from tests.structured.asking import REASKED, STRICT, capability, request


class Leg(BaseModel):
    """One part of an order."""

    qty: int


class Order(BaseModel):
    """An order that knows nothing of vetoes."""

    side: str
    legs: list[Leg] = Field(default_factory=list)


class Guarded(BaseModel):
    """An order that does."""

    side: str
    is_vetoed: bool = Field(default=False, validation_alias=AliasChoices("veto", "is_vetoed"))


class Open(BaseModel, extra="allow"):
    """An order that keeps what it does not know."""

    side: str


class Nested(BaseModel):
    """One that holds an open one."""

    order: Open


class Either(BaseModel):
    """One of two kinds."""

    order: Guarded | Leg


class Named(RootModel[dict[str, bool]]):
    """A map."""


@pytest.mark.parametrize("policy", [STRICT, REASKED])
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"side": "BUY", "veto": true}', "$.veto"),
        ('{"side": "BUY", "stopLoss": 41000}', "$.stopLoss"),
        ('{"side": "BUY", "legs": [{"qty": 1}, {"qty": 2, "reduce_only": true}]}', "$.legs[1].reduce_only"),
    ],
)
def test_omitted_protected_property_is_refused(text: str, path: str, policy: Any) -> None:
    outcome = read(response(text), Order, policy)

    assert isinstance(outcome, Rejected)
    assert outcome.trace.verdict is Stage.SEMANTIC
    assert [(v.path, v.keyword) for v in outcome.errors] == [(path, "protected")]


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ('{"side": "BUY", "mood": "calm"}', Order),
        ('{"side": "no \\"veto\\": from me"}', Order),
        ('{"side": "BUY", "veto": true}', Guarded),
        ('{"side": "BUY", "veto": true}', Open),
        ('{"order": {"side": "BUY", "veto": true}}', Nested),
        ('{"order": {"side": "BUY", "veto": true}}', Either),
        ('{"veto": true}', Named),
    ],
)
def test_retained_protected_property_is_accepted(text: str, model: type[BaseModel]) -> None:
    outcome = read(response(text), model, REASKED)

    assert isinstance(outcome, Accepted), outcome
    assert isinstance(outcome.instance, model)


def test_policy_defines_protected_properties() -> None:
    policy = REASKED.model_copy(update={"protected_keys": ("halt",)})

    assert isinstance(read(response('{"side": "BUY", "veto": true}'), Order, policy), Accepted)
    assert isinstance(read(response('{"side": "BUY", "halt": true}'), Order, policy), Rejected)


def test_caller_check_runs_after_model_check() -> None:
    class Small(BaseModel):
        model_config = ConfigDict(title="small")
        qty: int = Field(le=5)

    seen: list[str] = []

    def note(text: str) -> list[Any]:
        seen.append(text)
        return []

    assert isinstance(read(response('{"qty": 6}'), Small, STRICT, check=note), Rejected)
    assert isinstance(read(response('{"qty": 5}'), Small, STRICT, check=note), Accepted)
    assert seen == ['{"qty": 5}']


class Level(BaseModel):
    """A price, its label, and a number that may be rounded."""

    model_config = ConfigDict(strict=True)

    price: Decimal
    share: float = 0.0
    on: date = date(2026, 1, 1)
    marks: dict[str, list[Decimal | int]] = Field(default_factory=dict)


LONG = "27000.123456789012345678901"
DECIMALS = st.from_regex(r"-?(0|[1-9][0-9]{0,5})\.([0-9]{1,4}|[0-9]{10,30})", fullmatch=True).map(Decimal)


@given(DECIMALS, st.integers())
def test_instance_decimals_are_exact(number: Decimal, whole: int) -> None:
    text = f'{{"price": {number:f}, "share": {number:f}, "on": "2026-03-01", "marks": {{"a": [{number:f}, {whole}]}}}}'

    outcome = read(response(text), Level, STRICT)

    assert isinstance(outcome, Accepted)
    assert outcome.instance == Level(
        price=number, share=float(number), on=date(2026, 3, 1), marks={"a": [number, whole]}
    )


def test_validator_and_reask_keep_every_digit() -> None:
    class Tick(BaseModel):
        price: Decimal

        @field_validator("price")
        @classmethod
        def refuse(cls, price: Decimal) -> Decimal:
            raise ValueError(f"{price} is not on the tick")

    outcome = read(response(f'{{"price": {LONG}}}'), Tick, REASKED)

    assert isinstance(outcome, Rejected)
    assert [v.message for v in outcome.errors] == [f"Value error, {LONG} is not on the tick"]
    again = reask_request(request(capability(native_schema=False)), outcome, attempt=2)
    assert f"{LONG} is not on the tick" in again.user
    assert validate({"price": Decimal(LONG)}, Tick) == list(outcome.errors)


def test_protected_property_with_long_decimal_refused() -> None:
    outcome = read(response(f'{{"price": {LONG}, "veto": true}}'), Level, REASKED)

    assert isinstance(outcome, Rejected)
    assert [(v.path, v.keyword) for v in outcome.errors] == [("$.veto", "protected")]


def test_digit_heavy_texts_validate_as_json() -> None:
    class Seen(BaseModel):
        mode: str
        note: str

        @field_validator("mode")
        @classmethod
        def of(cls, mode: str, info: ValidationInfo) -> str:
            assert info.mode == mode
            return mode

    text = (
        '{"mode": "json", "note": "12345678901234567890 and 2E", "other": [12345678901234567890, 1e2, 0.5]}'
    )
    assert isinstance(read(response(text), Seen, STRICT), Accepted)

"""A pydantic model is a schema too: its JSON Schema decides the form, its own validators the meaning."""

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator, model_validator

from agentic_trading.canonical import exact_bytes
from agentic_trading.llm.result import Stage
from agentic_trading.structured import Accepted, ParserException, read, validate
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.patch import patch_value
from agentic_trading.structured.pydantic_schema import check_of_model, schema_of, violations_of
from agentic_trading.structured.validation import compile_schema, schema_bytes
from tests.build import response
from tests.structured.asking import ORDER, REASKED, STRICT


class Side(StrEnum):
    """Which way."""

    BUY = "BUY"
    SELL = "SELL"


class Leg(BaseModel, frozen=True, extra="forbid"):
    """A part of an order."""

    qty: int = Field(gt=0)
    px: Decimal | None = None


class Order(BaseModel, frozen=True, extra="forbid"):
    """An order whose stop lies below its entry."""

    side: Side
    entry: Decimal
    stop: Decimal
    legs: tuple[Leg, ...] = ()

    @field_validator("entry")
    @classmethod
    def _is_on_the_tick(cls, entry: Decimal) -> Decimal:
        assert entry % Decimal("0.5") == 0, "entry is not on the tick"
        return entry

    @model_validator(mode="after")
    def _stop_is_below(self) -> Self:
        if self.stop >= self.entry:
            raise ValueError("the stop must lie below the entry")
        return self


class Momentum(BaseModel):
    """Parameters to choose from."""

    momentum_period: Literal[5, 10, 20, 30]
    ma_periods: Literal[20, 60, 90, 120]
    stop_loss: Literal[0.08, 0.10, 0.12, 0.15]  # type: ignore[valid-type]
    resample: Literal["W", "M"]


class Choice(BaseModel):
    """What the model is asked for."""

    reasoning: str = Field(min_length=5)
    params: Momentum


class Opaque:
    """A type that JSON Schema knows nothing of."""


class Strange(BaseModel):
    """A model that can be made, and has no JSON Schema."""

    model_config: ClassVar[ConfigDict] = ConfigDict(arbitrary_types_allowed=True)

    thing: Opaque


class Unfinished(BaseModel):
    """A model that refers to what was never defined."""

    later: "Nowhere"  # type: ignore[name-defined]  # noqa: F821 - that is what is tested


GOOD: dict[str, Any] = {"side": "BUY", "entry": Decimal("100.5"), "stop": Decimal("99.10")}


def test_mapping_is_used_as_schema() -> None:
    assert schema_of(ORDER) is ORDER
    assert validate({"side": "BUY", "qty": 1}, MappingProxyType(ORDER)) == []


def test_model_schema_is_created_once() -> None:
    assert schema_of(Order) == Order.model_json_schema(mode="validation")
    assert schema_of(Order) is schema_of(Order)


def test_same_named_models_have_separate_schemas() -> None:
    def made(kind: Any) -> type[BaseModel]:
        class Same(BaseModel):
            a: kind

        return Same

    assert schema_of(made(int)) != schema_of(made(str))


@pytest.mark.parametrize("other", [5, "object", None, int, dict, Order(**GOOD), [ORDER], Mapping, lambda: 1])
def test_invalid_schema_type_is_refused(other: Any) -> None:
    with pytest.raises(UnreadableError, match="allowed are a JSON Schema and a pydantic model") as refused:
        schema_of(other)

    assert refused.value.stage is Stage.SCHEMA_INVALID
    with pytest.raises(ParserException) as caught:
        validate({}, other)
    assert caught.value.stage is Stage.SCHEMA_INVALID


@pytest.mark.parametrize("model", [Strange, Unfinished, BaseModel])
def test_model_without_schema_is_named(model: type[BaseModel]) -> None:
    with pytest.raises(UnreadableError, match=model.__name__) as refused:
        schema_of(model)

    assert refused.value.stage is Stage.SCHEMA_INVALID


def test_list_root_model_is_refused() -> None:
    class Legs(RootModel[list[int]]):
        pass

    with pytest.raises(ParserException, match="does not allow an object"):
        validate([1], Legs)


def test_valid_value_has_no_violations() -> None:
    assert validate(GOOD, Order) == []
    assert validate({**GOOD, "legs": [{"qty": 1, "px": "0.10"}, {"qty": 2, "px": None}]}, Order) == []


def test_validators_run_only_after_schema() -> None:
    broken = validate({**GOOD, "stop": 200, "side": "HOLD"}, Order)

    assert [(v.path, v.keyword, v.allowed) for v in broken] == [("$.side", "enum", ["BUY", "SELL"])]


@pytest.mark.parametrize(
    ("changes", "path", "keyword", "words"),
    [
        ({"stop": 101}, "$", "value_error", "the stop must lie below the entry"),
        ({"entry": Decimal("100.3")}, "$.entry", "assertion_error", "not on the tick"),
    ],
)
def test_validator_error_becomes_located_violation(
    changes: dict[str, Any], path: str, keyword: str, words: str
) -> None:
    (violation,) = validate({**GOOD, **changes}, Order)

    assert (violation.path, violation.keyword) == (path, keyword)
    assert words in violation.message


def test_list_index_is_in_violation_path() -> None:
    class Book(BaseModel):
        orders: list[Order]

    (violation,) = validate({"orders": [GOOD, {**GOOD, "stop": 101}]}, Book)

    assert violation.path == "$.orders[1]"


def test_model_check_runs_on_text() -> None:
    check = check_of_model(Order)

    assert check('{"side": "BUY", "entry": 100.5, "stop": 99.10}') == ()
    (violation,) = violations_of(check, '{"side": "BUY", "entry": 100.5, "stop": 101}')
    assert violation.path == "$"


def test_choice_violation_suggests_nearest_value() -> None:
    answer = {
        "reasoning": "medium term",
        "params": {"momentum_period": 25, "ma_periods": 60, "stop_loss": "10%", "resample": "w"},
    }

    named = {
        (v.path, v.keyword): (v.expected, v.actual, v.allowed, v.suggestion) for v in validate(answer, Choice)
    }

    assert named == {
        ("$.params.momentum_period", "enum"): (None, 25, [5, 10, 20, 30], 20),
        ("$.params.stop_loss", "type"): ("number", "10%", None, None),
        ("$.params.stop_loss", "enum"): (None, "10%", [0.08, 0.1, 0.12, 0.15], 0.1),
        ("$.params.resample", "enum"): (None, "w", ["W", "M"], "W"),
    }


def test_missing_field_gives_type_and_values() -> None:
    (violation,) = validate(
        {"reasoning": "medium term", "params": {"ma_periods": 60, "stop_loss": 0.1, "resample": "W"}}, Choice
    )

    assert (violation.path, violation.expected, violation.allowed) == (
        "$.params.momentum_period",
        "integer",
        [5, 10, 20, 30],
    )
    (violation,) = validate({"reasoning": "medium term"}, Choice)
    assert (violation.path, violation.expected, violation.allowed) == ("$.params", "object", None)


class TestDecimals:
    """Pydantic takes a Decimal as a number or as text; either way no digit is lost."""

    MONEY = "0.1234567890123456789"

    def test_number_and_string_decimals_stay_unchanged(self) -> None:
        schema = compile_schema(schema_bytes(schema_of(Leg)))
        for px in ("0.10", Decimal("0.10"), self.MONEY, Decimal(self.MONEY), 1):
            value = {"qty": 1, "px": px}

            result = patch_value(value, schema, REASKED, may_drop=True)

            assert result.value is value
            assert result.violations == []
            assert validate(value, Leg) == []

    @pytest.mark.parametrize("px", [f'"{MONEY}"', MONEY, '"0.10"', "0.10", "1.50e1"])
    def test_accepted_text_keeps_decimal_digits(self, px: str) -> None:
        text = f'{{"qty": 1, "px": {px}}}'

        accepted = read(response(text), Leg, STRICT)

        assert isinstance(accepted, Accepted)
        assert accepted.text == text
        assert accepted.value["px"] in {px.strip('"'), Decimal(px.strip('"'))}

    def test_coercion_keeps_other_decimal_digits(self) -> None:
        schema = compile_schema(schema_bytes(schema_of(Leg)))

        result = patch_value({"qty": "1", "px": Decimal(self.MONEY)}, schema, REASKED, may_drop=True)

        assert exact_bytes(result.value).decode() == f'{{"qty":1,"px":{self.MONEY}}}'

    def test_non_numeric_decimal_text_is_refused(self) -> None:
        assert validate({"qty": 1, "px": "0,10"}, Leg) != []
        assert validate({"qty": 1, "px": "10%"}, Leg) != []

    def test_quoted_integer_is_coerced(self) -> None:
        schema = compile_schema(schema_bytes(schema_of(Order)))
        value = {**GOOD, "legs": [{"qty": "3", "px": self.MONEY}]}

        result = patch_value(value, schema, REASKED, may_drop=True)

        assert result.value == {**GOOD, "legs": [{"qty": 3, "px": self.MONEY}]}
        assert [fix.where for fix in result.coercions] == ["$.legs[0].qty"]


def test_union_kinds_are_distinguished_by_tag() -> None:
    class Limit(BaseModel):
        kind: Literal["limit"]
        px: int

    class Market(BaseModel):
        kind: Literal["market"]

    class Ticket(BaseModel):
        order: Annotated[Limit | Market, Field(discriminator="kind")]

    (violation,) = validate({"order": {"kind": "limit", "px": "x"}}, Ticket)
    assert (violation.path, violation.keyword) == ("$.order.px", "type")
    (violation,) = validate({"order": {"kind": "limt", "px": 1}}, Ticket)
    assert (violation.path, violation.allowed, violation.suggestion) == (
        "$.order.kind",
        ["limit", "market"],
        "limit",
    )


def test_failing_schema_generation_names_model() -> None:
    class Broken(BaseModel):
        @classmethod
        def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
            raise ZeroDivisionError("no schema today")

    with pytest.raises(UnreadableError, match=r"Broken has none \(no schema today\)"):
        schema_of(Broken)

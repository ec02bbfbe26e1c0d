"""Drawn answers fit the patterns of their schema, or name the field and the remedy."""

import re
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentic_trading.client.answer import Answer
from agentic_trading.desk import Agent, Bar, Desk
from agentic_trading.desk.agents.dice import dice
from agentic_trading.desk.agents.dice_patterns import text_of_pattern
from agentic_trading.llm.errors import FailureKind, ProviderError
from tests.desk.agents.trading import played

PATTERNS = [
    r"^[A-Z]{1,5}$",
    r"^[A-Z]{3}(/[A-Z]{3,4})?$",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^(long|short|flat)$",
    r"^(?:a|b[0-9]+)*c$",
    r"^[^A-Z\s]+$",
    r"[a-f0-9]{8}",
    r"^[\w.-]+@[\w-]+\.[a-z]{2,}$",
    r"^\$\d+(\.\d{2})?$",
    r"^[+-]?\d+?%$",
    r"^.{10,}$",
    r"^[\]\\^-]$",
    r"",
]


class Ticker(BaseModel):
    symbol: Annotated[str, Field(pattern=r"^[A-Z]{2,5}$")]
    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(seed=st.text(max_size=8))
def test_drawn_text_matches_its_pattern(pattern: str, seed: str) -> None:
    text = text_of_pattern(pattern, 0, None, (seed,))

    assert text is not None
    assert re.search(pattern, text)
    assert text == text_of_pattern(pattern, 0, None, (seed,))


@given(seed=st.text(max_size=8))
def test_drawn_text_has_the_bounds_of_its_length(seed: str) -> None:
    text = dice({"type": "string", "pattern": "^[a-z]+$", "minLength": 3, "maxLength": 4}, seed)

    assert re.fullmatch("[a-z]{3,4}", text)


@given(seed=st.text(max_size=8))
def test_drawn_answer_passes_its_model(seed: str) -> None:
    drawn = Ticker.model_validate(dice(Ticker.model_json_schema(), seed))

    assert 2 <= len(drawn.symbol) <= 5


def test_other_seeds_give_other_texts() -> None:
    assert len({text_of_pattern("^[A-Z]{5}$", 0, None, (str(seed),)) for seed in range(20)}) == 20


@pytest.mark.parametrize(
    "pattern",
    [r"^(?=a)a$", r"(a)\1", r"\bword\b", r"[", r"a)", r"^[^\w]$", r"[\b]", r"^a{9}$"],
)
def test_pattern_that_is_not_drawn_names_field_and_remedy(pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"legs": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/leg"}}},
        "$defs": {
            "leg": {
                "type": "object",
                "properties": {"symbol": {"type": "string", "pattern": pattern, "maxLength": 8}},
            }
        },
    }

    with pytest.raises(ProviderError) as refused:
        dice(schema, "seed")
    assert refused.value.kind is FailureKind.INVALID_REQUEST
    assert f"the pattern {pattern!r} of legs.0.symbol. Override `offline`" in str(refused.value)


class Picking(Agent):
    """Asks for a text with a pattern at each close."""

    timeframe = "4h"

    def __init__(self, output: type[BaseModel] = Ticker) -> None:
        super().__init__()
        self._output = output

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        seen.append(await desk.decide("Which?", output=self._output))


seen: list[Answer[Any]] = []


async def test_agent_gets_answers_that_match_a_pattern() -> None:
    seen.clear()

    await played(Picking(), most_bars=60)

    assert seen
    assert all(seen)


async def test_agent_finds_the_remedy_in_a_missing_answer() -> None:
    class Ahead(BaseModel):
        symbol: Annotated[str, Field(json_schema_extra={"pattern": "^(?=A)A$"})]

    seen.clear()

    await played(Picking(Ahead), most_bars=60)

    assert seen
    failure = seen[0].failure
    assert failure is not None
    assert "of symbol. Override `offline` of the agent" in failure.technical_details + failure.description

"""Drawn answers fit patterns of words, and name the field and the remedy for other patterns."""

from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from agentic_trading.client.answer import Answer
from agentic_trading.desk import Agent, Bar, Desk
from agentic_trading.desk.agents.dice import dice
from agentic_trading.llm.errors import FailureKind, ProviderError
from tests.desk.agents.trading import played


class View(BaseModel):
    side: Annotated[str, Field(pattern=r"^(long|short|flat)$")]


@pytest.mark.parametrize("pattern", ["^(long|short|flat)$", "^(?:long|short|flat)$", "long|short|flat"])
def test_each_word_of_a_pattern_is_drawn(pattern: str) -> None:
    drawn = [dice({"type": "string", "pattern": pattern}, str(seed)) for seed in range(40)]

    assert set(drawn) == {"long", "short", "flat"}
    assert drawn == [dice({"type": "string", "pattern": pattern}, str(seed)) for seed in range(40)]


@pytest.mark.parametrize("pattern", [r"^[A-Z]{2,5}$", r"^(?=a)a$", r"(a)\1", "[", "a)b", "a.c"])
def test_other_pattern_names_field_and_remedy(pattern: str) -> None:
    schema = {
        "type": "object",
        "properties": {"legs": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/leg"}}},
        "$defs": {
            "leg": {"type": "object", "properties": {"symbol": {"type": "string", "pattern": pattern}}}
        },
    }

    with pytest.raises(ProviderError) as refused:
        dice(schema, "seed")
    assert refused.value.kind is FailureKind.INVALID_REQUEST
    assert f"the pattern {pattern!r} of legs.0.symbol. Use an enum" in str(refused.value)


class Picking(Agent):
    """Asks for a text with a pattern at each close."""

    timeframe = "4h"

    def __init__(self, output: type[BaseModel] = View) -> None:
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
    assert "of symbol. Use an enum" in failure.technical_details + failure.description

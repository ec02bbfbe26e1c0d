"""The instance of a model holds what the answer says: a protected property is not left out of it in silence."""

from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel

from agentic_trading.llm.result import Stage
from agentic_trading.structured import Accepted, Rejected, read
from tests.build import response
from tests.structured.asking import REASKED, STRICT


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
def test_a_protected_property_that_the_model_would_leave_out_is_refused(
    text: str, path: str, policy: Any
) -> None:
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
def test_one_that_the_instance_holds_is_no_hindrance(text: str, model: type[BaseModel]) -> None:
    outcome = read(response(text), model, REASKED)

    assert isinstance(outcome, Accepted), outcome
    assert isinstance(outcome.instance, model)


def test_which_ones_are_protected_is_said_by_the_policy() -> None:
    policy = REASKED.model_copy(update={"protected_keys": ("halt",)})

    assert isinstance(read(response('{"side": "BUY", "veto": true}'), Order, policy), Accepted)
    assert isinstance(read(response('{"side": "BUY", "halt": true}'), Order, policy), Rejected)


def test_a_rule_of_the_caller_runs_after_the_models_own() -> None:
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

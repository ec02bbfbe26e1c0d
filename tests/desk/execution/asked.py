"""What the tests of the execution agent share: an envelope as it asks one, and a gateway that answers by a rule."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from agentic_trading.canonical import exact_bytes, exact_value
from agentic_trading.clock import SimClock
from agentic_trading.desk.execution.agent import ExecutionAgent, ExecutionSettings
from agentic_trading.desk.execution.candidates import fill_strategy_rule
from agentic_trading.desk.execution.order import FillLimits, OrderIntent
from agentic_trading.desk.execution.strategy import FillStrategy
from agentic_trading.desk.market.bar import Bar
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import NoDecision
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from tests.build import result
from tests.desk.trade import BTC, bar, intent

SPREAD = Decimal(2)
SETTINGS = ExecutionSettings(session_id="s1", provider=LLMProvider.RULES, model="rules-1")
NARROW = "100 100.01 99.99 100"
WIDE = "100 101 99 100"


def closed_bars(*prices: str, volume: str = "1000") -> list[Bar]:
    """Return bars of which the last closes when the built intents are decided; without prices, two narrow ones."""
    given = prices or (NARROW, NARROW)
    return [bar(number - len(given) + 1, text, volume) for number, text in enumerate(given)]


def asked(
    about: OrderIntent | None = None, limits: FillLimits | None = None, bars: Sequence[Bar] = ()
) -> LLMEnvelope:
    """Return the envelope that the agent makes of an intent."""
    about = about or intent()
    agent = ExecutionAgent(RuleGateway(), SimClock(about.as_of), limits or FillLimits(), SETTINGS)
    return agent.envelope(about, BTC, bars or closed_bars(), SPREAD)


NUMBERS = ("limit_offset_bps", "max_participation", "expected_slippage_bps", "confidence")


def text_of(chosen: FillStrategy, **changes: Any) -> str:
    """Return a strategy as a model would write it, with `changes` that no model may be able to hold."""
    fields = {**chosen.model_dump(mode="json"), **changes}
    return exact_bytes({n: Decimal(str(v)) if n in NUMBERS else v for n, v in fields.items()}).decode()


def chosen_text(fill: str | dict[str, Any], **changes: Any) -> str:
    """Return a choice as a model would write it: a name, or terms in full."""
    fields = {"evidence_ids": ["E2"], "rationale": "It is small.", "fill": fill, "confidence": Decimal("0.6")}
    return exact_bytes({**fields, **changes}).decode()


def in_full(chosen: FillStrategy, **changes: Any) -> str:
    """Return a choice that brings its terms itself, with `changes` that no terms may be able to hold."""
    fields = exact_value(text_of(chosen, **changes).encode())
    given = {name: fields.pop(name) for name in ("evidence_ids", "rationale", "confidence")}
    return chosen_text(fields, **given)


class RuleGateway:
    """A gateway in memory: it answers every envelope by `answer`, and keeps what was asked and recorded."""

    def __init__(self, answer: Callable[[LLMEnvelope], str] = fill_strategy_rule, **changes: Any) -> None:
        self._answer = answer
        self._changes = changes
        self.asked: list[LLMEnvelope] = []
        self.events: list[Event] = []

    async def ask(self, envelope: LLMEnvelope) -> LLMInteraction | NoDecision:
        """Answer as a worker would have, with `changes` to the result."""
        self.asked.append(envelope)
        text = self._answer(envelope)
        fields = {
            "envelope_id": envelope.envelope_id,
            "raw_output": text,
            "parsed_output": exact_value(text.encode()),
            **self._changes,
        }
        return LLMInteraction(envelope=envelope, result=result(**fields))

    async def record(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)


class SilentGateway(RuleGateway):
    """A gateway that has no answer."""

    def __init__(self, decision: NoDecision) -> None:
        super().__init__()
        self._decision = decision

    async def ask(self, envelope: LLMEnvelope) -> NoDecision:
        """Return the reason why there is none."""
        self.asked.append(envelope)
        return self._decision

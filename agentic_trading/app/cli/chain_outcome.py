"""What came of a decision chain, in a few words."""

from collections import Counter
from collections.abc import Sequence

from agentic_trading.app.plural import pluralize
from agentic_trading.desk.decision_logging import verdict_of
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record

STOPPED = {
    "order.submitted": "unfilled",
    "order.rejected": "rejected",
    "intent.rejected": "rejected",
    "intent.skipped": "skipped",
}
"""What became of a verdict without a fill, by the kind of event that says so; the first that holds."""


def chain_outcome(records: Sequence[Record]) -> str:
    """Return what was decided and what followed: `long → 2 fills`, `stand_aside`, `refusal`; empty if nothing was."""
    events = [record for record in records if isinstance(record, Event)]
    assessed = next((str(event.body.get("verdict")) for event in events if event.kind == "assessment"), "")
    failed = next((_reason(event) for event in events if event.kind == "no_decision"), "")
    followed = _followed(Counter(event.kind for event in events)) or failed
    if assessed:
        return f"{assessed} → {followed}" if followed else assessed
    calls = [record for record in records if isinstance(record, LLMInteraction)]
    return failed or (verdict_of(calls[-1]) if calls else "")


def _reason(event: Event) -> str:
    reason = event.body.get("reason")
    return str(reason.get("category")) if isinstance(reason, dict) else "no_decision"


def _followed(kinds: Counter[str]) -> str:
    if kinds["fill"]:
        return pluralize(kinds["fill"], "fill")
    return next((word for kind, word in STOPPED.items() if kinds[kind]), "")

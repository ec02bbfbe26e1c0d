"""What of a log is evidence for a model, summed by code; and the rules that answer from it without a model."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Protocol

from agentic_trading.app.cli.chains import newest_chains
from agentic_trading.app.cli.output import usd
from agentic_trading.app.options import pluralize
from agentic_trading.client.frame_calls import JOIN_SCHEMA
from agentic_trading.client.response import ANSWER_SCHEMA
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Records

AGENT: Final = "ask"
SUBJECT: Final = "question"
"""Who asks, and what its calls are about: they are no evidence of their own."""

SPEND: Final = "spend by agent and day (UTC)"
FAILURES: Final = "failed calls by agent and kind"
DECISIONS: Final = "last decisions"

MOST_ROWS: Final = 60
MOST_DECISIONS: Final = 50
MOST_CALLS: Final = 500
"""So many of the newest calls are looked at for the kinds of their failures."""


class AskedLog(Records, Protocol):
    """A log that is asked about."""

    async def recent(self, limit: int = 10, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        ...


async def evidence_of(log: AskedLog, tenant: str) -> Mapping[str, Any]:
    """Return what a tenant's records say, by source: sums of the newest days, failures, and the last decisions, newest first."""
    spend = [row for row in await log.spend("day", "agent", tenant=tenant) if row.key[1] != AGENT]
    calls = await log.recent(MOST_CALLS, tenant=tenant)
    failed = Counter(
        (call.envelope.agent_id, str(call.failure.category))
        for call in calls
        if call.failure is not None and call.envelope.agent_id != AGENT
    )
    chains = await newest_chains(log, 2 * MOST_DECISIONS, with_calls=True, tenant=tenant)
    decisions = [(chain, outcome) for chain, outcome in chains if chain.subject != SUBJECT]
    return {
        SPEND: {
            "rows": [
                {
                    "day": row.key[0],
                    "agent": row.key[1],
                    "calls": row.attempts,
                    "failed": row.failed,
                    "usd": usd(row.cost_nusd),
                }
                for row in spend[-MOST_ROWS:]
            ],
            "older_rows_left_out": max(0, len(spend) - MOST_ROWS),
        },
        FAILURES: [
            {"agent": agent, "kind": kind, "calls": number}
            for (agent, kind), number in sorted(failed.items())
        ],
        DECISIONS: [
            {
                "time": chain.last[:19],
                "subject": chain.subject,
                "outcome": outcome,
                "usd": usd(chain.cost_nusd),
            }
            for chain, outcome in decisions[:MOST_DECISIONS]
        ],
    }


def _content(envelope: LLMEnvelope, source: str) -> Any:
    found = (item.content for item in envelope.retrieved_evidence if item.source == source)
    return next(found, None)


def _rows(envelope: LLMEnvelope) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = (_content(envelope, SPEND) or {}).get("rows", [])
    return rows


def _dearest(name: str, what: str) -> Callable[[LLMEnvelope], str]:
    def answer(envelope: LLMEnvelope) -> str:
        sums = defaultdict[str, Decimal](Decimal)
        for row in _rows(envelope):
            sums[row[name]] += Decimal(row["usd"].replace(",", ""))
        if not sums:
            return "There is no call on record."
        key, most = max(sums.items(), key=lambda item: item[1])
        return f"{what} {key} spent most: {most} of {sum(sums.values())} USD."

    return answer


def _failures(envelope: LLMEnvelope) -> str:
    rows = _content(envelope, FAILURES) or []
    named = ", ".join(f"{row['agent']} {row['kind']} {row['calls']}" for row in rows)
    total = sum(row["calls"] for row in rows)
    return f"{pluralize(total, 'call')} failed: {named}." if rows else "No call failed."


PARTS: Final[Mapping[str, Callable[[LLMEnvelope], str]]] = MappingProxyType({
    "Which agent spent most?": _dearest("agent", "Agent"),
    "Which day cost most?": _dearest("day", "Day"),
    "Which calls failed?": _failures,
})
"""The questions that the rules answer by themselves; any other is split into these."""


def ask_rule(envelope: LLMEnvelope) -> str:
    """Answer one of `PARTS`, or split a question into them."""
    known = PARTS.get(envelope.context["question"])
    if known is not None:
        return json.dumps({"conclusion": known(envelope), "confidence": 1})
    tasks = [{"query": query, "priority": place} for place, query in enumerate(PARTS, start=1)]
    so_far = f"{pluralize(len(_rows(envelope)), 'row')} of spend are on record; the rules read no words."
    return json.dumps({"conclusion": so_far, "sub_tasks": tasks, "next_action": "continue"})


def join_rule(envelope: LLMEnvelope) -> str:
    """Put the findings one after the other."""
    found = [finding["conclusion"] for finding in envelope.context["findings"] if finding["conclusion"]]
    return json.dumps({"conclusion": " ".join(found)})


ASK_RULES: Final[Mapping[str, Callable[[LLMEnvelope], str]]] = MappingProxyType({
    ANSWER_SCHEMA["$id"]: ask_rule,
    JOIN_SCHEMA["$id"]: join_rule,
})
"""What the provider `rules` answers by."""

"""Answers of the provider `rules` to questions about a log.

Other questions are split into three known ones.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.client.frame_calls import ASK_SCHEMA, JOIN_SCHEMA
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.operate.choices import pluralize

SPEND: Final = "spend by agent and day (UTC)"
FAILURES: Final = "failed calls by agent and kind"
"""Sources of the evidence that the rules read."""


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
"""The questions that the rules answer. Other questions are split into these."""


def ask_rule(envelope: LLMEnvelope) -> str:
    """Answer one of `PARTS`, or split a question into them."""
    known = PARTS.get(envelope.context["question"])
    if known is not None:
        return json.dumps({"conclusion": known(envelope), "confidence": 1})
    tasks = [{"query": query, "priority": place} for place, query in enumerate(PARTS, start=1)]
    so_far = f"{pluralize(len(_rows(envelope)), 'row')} of spend are on record; the rules read no words."
    return json.dumps({"conclusion": so_far, "sub_tasks": tasks, "next_action": "continue"})


def join_rule(envelope: LLMEnvelope) -> str:
    """Join the findings into one text."""
    found = [finding["conclusion"] for finding in envelope.context["findings"] if finding["conclusion"]]
    return json.dumps({"conclusion": " ".join(found)})


ASK_RULES: Final[Mapping[str, Callable[[LLMEnvelope], str]]] = MappingProxyType({
    ASK_SCHEMA["$id"]: ask_rule,
    JOIN_SCHEMA["$id"]: join_rule,
})
"""The rules by schema `$id`."""

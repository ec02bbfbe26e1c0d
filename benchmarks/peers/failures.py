"""The failures that calls are counted for: what a model answers first, and what when it is asked again."""

import json
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.reader import same
from benchmarks.peers.slips import TICKET

QUESTION = "Give me the order."
_RIGHT = json.dumps(TICKET)


@dataclass(frozen=True)
class Answer:
    """One answer of a model, and why it stopped."""

    text: str
    stop_reason: str = "end_turn"


@dataclass(frozen=True)
class Billed:
    """How many calls were paid for, and what came out: `right`, `WRONG VALUE`, or the name of an error."""

    calls: int
    outcome: str


class Answers:
    """Answers in order; the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers
        self.given = 0

    def next(self) -> Answer:
        """Return the next answer: it is billed."""
        self.given += 1
        return self._answers[min(self.given, len(self._answers)) - 1]


_MISSING = json.dumps({key: value for key, value in TICKET.items() if key != "side"})
_REFUSAL = "I can't help with placing orders."
FAILURES: dict[str, tuple[Answer, ...]] = {
    "none": (Answer(_RIGHT),),
    "prose around": (Answer(f"Here is the order:\n{_RIGHT}\nShall I place it?"),),
    "trailing comma": (Answer(_RIGHT[:-1] + ",}"),),
    "refusal": (Answer(_REFUSAL, "refusal"),),
    "truncation": (Answer(_RIGHT[:90], "max_tokens"),),
    "truncation that still parses": (Answer(_RIGHT.replace(', "v2, new"', ""), "max_tokens"),),
    "wrong enum, then right": (Answer(_RIGHT.replace('"BUY"', '"LONG"')), Answer(_RIGHT)),
    "missing field, then right": (Answer(_MISSING), Answer(_RIGHT)),
    "missing field, again and again": (Answer(_MISSING),),
}


def answers_to(kind: str) -> Answers:
    """Return what the model answers in a failure of `kind`."""
    return Answers(*FAILURES[kind])


def told(calls: int, value: Any) -> Billed:
    """Return what came out of a call that gave a value."""
    return Billed(calls, "right" if same(value, TICKET) else "WRONG VALUE")

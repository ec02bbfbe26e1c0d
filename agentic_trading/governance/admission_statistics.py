"""What a gate has answered so far, for those who look on."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from agentic_trading.governance.admission_decisions import Admitted, Deferred, Denied, AlreadyDispatched
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.failure import FailureKind, FailureReason

_REMEMBERED = 50
"""Refusals that are kept to be looked at."""


@dataclass(frozen=True, slots=True)
class DeniedCall:
    """An attempt that was refused, and when; to be looked at by people."""

    at: datetime
    envelope: LLMEnvelope
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Answers given since the start, and the real seconds that parked attempts have waited, all together."""

    admitted: int
    parked: int
    refused: Mapping[FailureKind, int]
    waited_s: float
    taken: int = 0


class AdmissionCounters:
    """Counts answers, and remembers the last refusals."""

    def __init__(self) -> None:
        self._admitted = self._parked = self._taken = 0
        self._refused: Counter[FailureKind] = Counter()
        self._refusals: deque[DeniedCall] = deque(maxlen=_REMEMBERED)
        self._waited_s = 0.0

    def note(
        self, envelope: LLMEnvelope, answer: Admitted | Denied | Deferred | AlreadyDispatched, now: datetime
    ) -> None:
        """Count an answer that was given at `now`."""
        match answer:
            case Admitted():
                self._admitted += 1
            case Deferred():
                self._parked += 1
            case Denied():
                self._refused[answer.reason.category] += 1
                self._refusals.append(DeniedCall(now, envelope, answer.reason))
            case AlreadyDispatched():
                self._taken += 1
            case _:
                assert_never(answer)

    def note_wait(self, seconds: float) -> None:
        """Count real seconds that a parked attempt has waited."""
        self._waited_s += seconds

    def statistics(self) -> AdmissionStatistics:
        """Return the counts since the start."""
        return AdmissionStatistics(self._admitted, self._parked, dict(self._refused), self._waited_s, self._taken)

    def refusals(self) -> Sequence[DeniedCall]:
        """Return the last refused calls, oldest first."""
        return tuple(self._refusals)

"""Joins requests that a client sends again to the call of the first one, so that it is paid once."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from agentic_trading.cancellation import OwnedTasks
from agentic_trading.client.outcome import StructuredOutcome, outcome_of
from agentic_trading.clock import Clock
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.server import errors
from agentic_trading.server.api_keys import ApiKey
from agentic_trading.server.errors import RequestError, reused_key
from agentic_trading.server.shared_calls import SharedCalls

MOST_CALLS: Final = 4_096
"""The most calls of an API key that are remembered. Above it, the oldest finished ones are forgotten."""

MOST_CHARACTERS: Final = 64 * 1024 * 1024
"""The characters of the finished calls of an API key that are remembered. Above it, the oldest ones are forgotten."""

PATIENCE_S: Final = 1_800.0
"""Seconds in which a request without an `Idempotency-Key` can join a call, if its client sends no time-out."""

MOST_REFUSED: Final = 256
"""The most calls of one `Idempotency-Key` that may end unsent. The next one is refused."""

_KEY = re.compile(r"[!-~]{1,255}")
_RETRIES = re.compile(r"[0-9]{1,9}")
_SAME: Final = ("tenant_id", "agent_type", "agent_id", "request_hash")
"""The fields of an envelope that are equal if a request is sent again."""

CallEnd = StructuredOutcome | Exception
"""The end of a call. An error is a value, because its client may have gone."""

RunCall = Callable[[LLMEnvelope], Awaitable[CallEnd]]


class RecordedCalls(Protocol):
    """The calls in the log."""

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> Sequence[LLMInteraction]:
        """Return all attempts at an envelope, oldest first."""
        ...


@dataclass(slots=True, eq=False)
class JoinedCall:
    """A call, for all requests that wait for it.

    Attributes:
        envelope: Its envelope. It is replaced if the call is found in the log.
        ends: The monotonic time of the last join without an `Idempotency-Key`.
        has_key: Whether it has an `Idempotency-Key`.
        trace: The trace that its request names, or an empty text.
        task: The task of the call.
        joined: The number of requests that have joined.
        size: The characters of its request and its answers, once it has ended.

    """

    envelope: LLMEnvelope
    ends: float
    has_key: bool
    trace: str = ""
    task: "asyncio.Task[CallEnd]" = field(init=False)
    joined: int = 0
    size: int = 0


@dataclass(slots=True)
class Joins:
    """The calls that requests can join: running ones, and those without a fully written answer.

    A finished call with an `Idempotency-Key` is found in the log, also after a restart.

    Attributes:
        clock: The clock of joins.
        earlier: The calls in the log.
        tasks: The owner of the calls.
        shared: The calls that servers of one bus share. None for a server that is alone.

    """

    clock: Clock
    earlier: RecordedCalls
    tasks: OwnedTasks
    shared: SharedCalls | None = None
    _calls: dict[str, dict[str, JoinedCall]] = field(default_factory=dict)

    def call(
        self,
        key: ApiKey,
        envelope: LLMEnvelope,
        headers: Mapping[str, str],
        run: RunCall,
        patience_s: float | None = None,
        *,
        trace: str = "",
    ) -> JoinedCall:
        """Return the call of a request: an earlier one that it repeats, or a new one.

        Args:
            key: The API key of the request.
            envelope: Its envelope.
            headers: Its headers.
            run: Runs an envelope.
            patience_s: The seconds that its client waits, or None if unknown.
            trace: The trace that it names, or an empty text. Without an `Idempotency-Key`, it joins no call of
                another one.

        Raises:
            RequestError: If the `Idempotency-Key` is wrong, or was used for another request.

        """
        calls, now = self._calls.setdefault(key.owner, {}), self.clock.monotonic()
        name = idempotency_key(headers)
        if name:
            id_ = derived_id("http-call", key.tenant, key.name, name)
            found = calls.get(id_)
            if found is not None and not _is_same(found.envelope, envelope):
                raise reused_key()
        else:
            id_ = envelope.envelope_id
            found = _repeated(calls, envelope, trace, now) if _retries(headers) else None
        if found is not None:
            found.joined += 1
            return found
        _make_room(calls, now)
        call = JoinedCall(envelope, now + (patience_s or PATIENCE_S), bool(name), trace)
        work = self._named(call, id_, run) if name else _run(run, envelope)
        call.task = self.tasks.start(work, name=f"call-{id_}")
        calls[id_] = call
        call.task.add_done_callback(lambda task: _ended(calls, id_, call, task))
        return call

    def written(self, key: ApiKey, call: JoinedCall) -> None:
        """Note that the answer of a call was written to a client in full. It can then not be joined any more."""
        calls = self._calls.get(key.owner, {})
        for id_ in [id_ for id_, one in calls.items() if one is call]:
            del calls[id_]

    async def _named(self, call: JoinedCall, id_: str, run: RunCall) -> CallEnd:
        """Return the end of a call with an `Idempotency-Key`: as recorded, or of a new call.

        A call that ended unsent is made again with another envelope, because a record has one end.
        """
        asked, name = call.envelope, id_
        try:
            for number in range(1, MOST_REFUSED + 1):
                made = await self.earlier.by_envelope(name, tenant=asked.tenant_id)
                if not made:
                    call.envelope = asked.model_copy(update={"envelope_id": name, "idempotency_key": name})
                    end, is_first = await self._shared(call, run)
                    # The refusal of an earlier request, which another server has made, is no answer to this one.
                    if is_first or not _ended_unsent(end):
                        return end
                    name = derived_id(id_, number)
                    continue
                first = made[0].envelope
                if not _is_same(first, asked):
                    return reused_key()
                if made[-1].result.next_step not in {"", "final"}:
                    call.envelope = first
                    return (await self._shared(call, run))[0]
                outcome = outcome_of(made)
                if _was_sent(outcome):
                    call.envelope = first
                    return outcome
                name = derived_id(id_, number)
        except Exception as e:  # noqa: BLE001 - the reply raises it
            return e
        why = f"{MOST_REFUSED} calls with this Idempotency-Key were refused. Use a new one"
        return RequestError(errors.KEY_REUSED, why, param="Idempotency-Key")

    async def _shared(self, call: JoinedCall, run: RunCall) -> tuple[CallEnd, bool]:
        """Run a call with an `Idempotency-Key`. Return its end, and whether no other server was first."""
        asked = call.envelope
        if self.shared is None:
            return await run(asked), True
        with self.shared.sharing(asked.envelope_id):
            end = await run(asked)
            call.envelope = self.shared.published(asked)
        return end, call.envelope is asked


async def _run(run: RunCall, envelope: LLMEnvelope) -> CallEnd:
    return await run(envelope)


def idempotency_key(headers: Mapping[str, str]) -> str:
    """Return the `Idempotency-Key` of a request, or an empty text. Raises `RequestError` if it is wrong."""
    name = headers.get("idempotency-key", "").strip()
    if name and not _KEY.fullmatch(name):
        why = "the Idempotency-Key is wrong. Allowed: 1 to 255 printable characters of ASCII without spaces"
        raise RequestError(errors.REFUSED_FIELD, why, param="Idempotency-Key")
    return name


def _retries(headers: Mapping[str, str]) -> int:
    """Return how often the vendors' libraries have sent this request before."""
    text = headers.get("x-stainless-retry-count", "")
    return int(text) if _RETRIES.fullmatch(text) else 0


def _is_same(earlier: LLMEnvelope, asked: LLMEnvelope) -> bool:
    """Return whether two envelopes are the same request of one owner.

    The agent counts, because a key of the same name can be made for another one.
    """
    return all(getattr(earlier, name) == getattr(asked, name) for name in _SAME)


def _repeated(
    calls: Mapping[str, JoinedCall], envelope: LLMEnvelope, trace: str, now: float
) -> JoinedCall | None:
    """Return the call that a request without an `Idempotency-Key` repeats, or None.

    Of equal calls, it is the one that fewest requests have joined, and then the oldest. Two runs of an agent
    name a trace each, so that neither gets the answer of the other.
    """
    same = (
        call
        for call in calls.values()
        if not call.has_key and call.trace == trace and _is_same(call.envelope, envelope) and now < call.ends
    )
    return min(same, key=lambda call: call.joined, default=None)


def _make_room(calls: dict[str, JoinedCall], now: float) -> None:
    """Forget calls that nobody can join, and the oldest finished ones if there are too many.

    A running call is never forgotten: its memory would not be freed, and a retry would be paid again.
    """
    done = [id_ for id_, call in calls.items() if call.task.done()]
    size = sum(calls[id_].size for id_ in done)
    for id_ in done:
        if calls[id_].ends <= now or len(calls) >= MOST_CALLS or size > MOST_CHARACTERS:
            size -= calls.pop(id_).size


def _ended(calls: dict[str, JoinedCall], id_: str, call: JoinedCall, task: "asyncio.Task[CallEnd]") -> None:
    """Note the size of a finished call. One that has sent nothing is forgotten, so that the next request is a new call."""
    end = None if task.cancelled() else task.result()
    if isinstance(end, StructuredOutcome) and _was_sent(end):
        call.size = len(call.envelope.context_json) + sum(len(one.text) for one in end.attempts)
    elif calls.get(id_) is call:
        del calls[id_]


def _ended_unsent(end: CallEnd) -> bool:
    """Whether the last attempt of a call is known, and no attempt was sent. A lost answer may be paid."""
    if not isinstance(end, StructuredOutcome) or not end.attempts:
        return False
    return end.attempts[-1].next_step in {"", "final"} and not _was_sent(end)


def _was_sent(outcome: StructuredOutcome) -> bool:
    return any(one.sent for one in outcome.attempts)

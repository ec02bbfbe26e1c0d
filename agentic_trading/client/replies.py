"""The calls that have no answer yet, and the replies to them: trusted as their signature is, matched by id and hash."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from agentic_trading.bus.codec import (
    ReplyHead,
    read_dead_letter,
    read_interaction,
    reply_head,
)
from agentic_trading.bus.errors import UnreadableMessageError
from agentic_trading.bus.message import Message, header
from agentic_trading.bus.signing import Signer
from agentic_trading.bus.topic import DeadLetter
from agentic_trading.canonical import sha256_hex
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.logger import get_logger

log = get_logger()


@dataclass(frozen=True, slots=True, eq=False)
class PendingCall:
    """One envelope, `sent` as a message, and its answer to come; with `attempts`, also the attempts before the last.

    A reply may be signed as `signer` signed when it was sent, though its keys were exchanged since.
    """

    envelope: LLMEnvelope
    sent: Message
    reply: "asyncio.Future[LLMInteraction | NoDecision]"
    attempts: list[LLMInteraction] | None
    signer: Signer | None = None

    def end(self, why: str) -> None:
        """Answer it with a `NoDecision`, if it has no answer yet."""
        _resolve([self], no_answer(self.envelope.envelope_id, why))


class PendingCalls:
    """The calls of one client; with a `signer` a reply has to be signed as it signs, or signed when its call was sent."""

    def __init__(self, signer: Signer | None) -> None:
        self._signer = signer
        self._calls: dict[str, list[PendingCall]] = {}  # by envelope id
        self._ignored = Counter[str]()

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many replies were ignored so far, by reason."""
        return MappingProxyType(self._ignored)

    def add(self, call: PendingCall) -> None:
        """Let replies find a call."""
        self._calls.setdefault(call.envelope.envelope_id, []).append(call)

    def remove(self, call: PendingCall) -> None:
        """Forget a call."""
        calls = self._calls[call.envelope.envelope_id]
        calls.remove(call)
        if not calls:
            del self._calls[call.envelope.envelope_id]

    def end_all(self, why: str) -> None:
        """Answer every call with a `NoDecision`."""
        for call in chain.from_iterable(self._calls.values()):
            call.end(why)

    def receive(self, message: Message) -> None:
        """Give a reply to the calls that it answers; one that answers none is ignored, and counted by its reason.

        `signature`: it is not signed as the envelopes of this client are. `kind`: it is neither an attempt nor a dead letter.
        `unexpected`: no call has its envelope's id and hash, or not any more. `unreadable`: it may be a dead letter.
        """
        head = reply_head(message)
        if head.is_attempt:
            ignored = self._receive_attempt(message, head)
        elif head.is_dead_letter:
            ignored = self._receive_letter(message, head)
        else:
            ignored = "kind"
        if ignored:
            self._ignored[ignored] += 1
            log.debug("reply_ignored", reason=ignored, envelope_id=head.envelope_id)

    def _receive_attempt(self, message: Message, head: ReplyHead) -> str:
        """Return why a reply is ignored; empty if it is not."""
        if not self._is_proved(message, head):
            return "signature"
        calls = [
            call
            for call in self._calls.get(head.envelope_id, ())
            if call.envelope.envelope_hash == head.envelope_hash
        ]
        if not calls:
            return "unexpected"
        if not head.is_final and all(call.attempts is None for call in calls):
            return ""
        try:
            attempt = read_interaction(message)
        except UnreadableMessageError as e:  # no answer to this call, and nothing to the others
            _end_unread(calls, head, e)
            return ""
        if attempt.envelope.envelope_hash != head.envelope_hash:
            return "unexpected"
        if head.is_final:
            _resolve(calls, attempt)
        else:
            _collect(calls, attempt)
        return ""

    def _receive_letter(self, message: Message, head: ReplyHead) -> str:
        """Return why a dead letter is ignored; empty if it is not.

        The letter of a message whose sender was not proved cannot be signed: it has to hold the very message.
        """
        is_proved = self._is_proved(message, head)
        try:
            letter = read_dead_letter(message)
        except UnreadableMessageError as e:
            calls = self._calls.get(head.envelope_id, []) if is_proved else []
            _resolve(calls, no_answer(head.envelope_id, f"the answer cannot be read: {e.detail}"))
            return "" if calls else "unreadable"
        if not is_proved and letter.reason != "signature":
            return "signature"
        calls = [call for call in self._calls.get(_envelope_id(letter), ()) if _is_about(call, letter)]
        why = f"dead letter: {letter.reason}: {letter.detail}"
        for call in calls:
            _resolve([call], no_answer(call.envelope.envelope_id, why, letter=letter.reason))
        return "" if calls else "unexpected"

    def _is_proved(self, message: Message, head: ReplyHead) -> bool:
        if self._signer is None or self._signer.has_signed(message):
            return True
        signers = (call.signer for call in self._calls.get(head.envelope_id, ()))
        return any(signer is not None and signer.has_signed(message) for signer in signers)


def no_answer(envelope_id: str, why: str, *, letter: str = "") -> NoDecision:
    """Return that a call has no answer, and the reason of its dead `letter`; to ask the same envelope again is right."""
    reason = FailureReason(
        category=FailureKind.UNDELIVERABLE, description=why, technical_details=letter, recoverable=True
    )
    return NoDecision(reason=reason, envelope_id=envelope_id)


def _end_unread(calls: Iterable[PendingCall], head: ReplyHead, e: UnreadableMessageError) -> None:
    """End calls whose last attempt cannot be read; of an earlier one, the last is still to come."""
    if head.is_final:
        _resolve(calls, no_answer(head.envelope_id, f"the answer cannot be read: {e.detail}"))
    else:
        log.warning("attempt_unreadable", envelope_id=head.envelope_id, detail=e.detail)


def _collect(calls: Iterable[PendingCall], attempt: LLMInteraction) -> None:
    for call in calls:
        if call.attempts is not None:
            call.attempts.append(attempt)


def _envelope_id(letter: DeadLetter) -> str:
    """Return the id of the envelope in a letter: that of an unproved message stands in its headers alone."""
    return letter.envelope_id or header(Message("", b"", letter.headers), "ce_id")


def _is_about(call: PendingCall, letter: DeadLetter) -> bool:
    """Whether a letter is about the message of a call, and not another one under the same id."""
    if letter.reason in {"signature", "not_allowed"}:
        is_same_head = (letter.key, letter.headers) == (call.sent.key, dict(call.sent.headers))
        return is_same_head and letter.raw_sha256 == sha256_hex(call.sent.value)
    return letter.reason != "id_conflict" or call.envelope.envelope_hash.encode() in letter.raw


def _resolve(calls: Iterable[PendingCall], answer: LLMInteraction | NoDecision) -> None:
    for call in calls:
        if not call.reply.done():
            call.reply.set_result(answer)

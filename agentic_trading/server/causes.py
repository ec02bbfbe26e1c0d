"""The causes of calls: a request repeats ids or texts of earlier answers."""

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event, RequestQuoted
from agentic_trading.logger import get_logger
from agentic_trading.server.fields import ClientRequest
from agentic_trading.server.shared_calls import SharedCalls

log = get_logger()

SHORTEST_QUOTE: Final = 80
"""The characters of the shortest text of an answer that counts as quoted."""

ANSWERS_KEPT: Final = 64
"""The answers of a trace that are remembered. Older ones are forgotten."""

MOST_TEXTS: Final = 8
"""The texts of an answer that are remembered: the longest ones."""

MOST_TRACES: Final = 1024
"""The traces that are remembered. The one without an answer for the longest time is forgotten first."""

MOST_IDS: Final = 256
"""The ids inside an answer that are remembered."""

MOST_ID: Final = 256
"""The characters of the longest id that is remembered."""

MOST_CHARACTERS: Final = 32 * 1024 * 1024
"""The characters of all remembered texts and ids. Traces are forgotten in the same order."""

READ_AT_ONCE: Final = 64 * 1024
"""Answers up to this number of characters are read on the loop, longer ones in a thread."""

_ESCAPE: Final = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))""")
_PAIR: Final = re.compile("([\ud800-\udbff])([\udc00-\udfff])")
_LETTERS: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

_ID_FIELDS: Final = frozenset({"id", "item_id", "call_id", "tool_call_id", "tool_use_id"})
_SAID: Final = ("messages", "input", "instructions", "system")
_ANSWERED: Final = ("choices", "output", "content")
"""The fields of an answer that the model wrote. Other fields repeat the request."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The answers that a request repeats.

    Attributes:
        id: The interaction of the newest one. Empty without one.
        trace_id: Its trace.
        quoted: The interactions of all of them, oldest first. Empty if the newest one and its own causes are all.

    """

    id: str = ""
    trace_id: str = ""
    quoted: tuple[str, ...] = ()


NO_CAUSE: Final = Cause()


@dataclass(frozen=True, slots=True)
class _Answer:
    """A remembered answer. `number` is its place among all answers of the server."""

    number: int
    interaction_id: str
    trace_id: str
    cause: str
    ids: frozenset[str]
    texts: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.texts)) + sum(map(len, self.ids))


@dataclass(slots=True)
class Causes:
    """The answers of each API key by trace. Calls that name no trace are one group of their key.

    They are in memory, so that a request after a restart has a cause only once it repeats a newer answer.

    Attributes:
        most_traces, most_characters: Limits of the memory.

    """

    most_traces: int = MOST_TRACES
    most_characters: int = MOST_CHARACTERS
    _groups: "OrderedDict[tuple[str, str], list[_Answer]]" = field(default_factory=OrderedDict)
    _numbers: Iterator[int] = field(default_factory=count)
    _size: int = 0

    def find(self, key: str, trace: str, request: ClientRequest) -> Cause:
        """Return the answers that a request repeats. It may run in a thread.

        Args:
            key: The owner of its API key. Answers of other keys do not count.
            trace: The trace that the request names, or an empty text. Answers of other traces do not count.
            request: The request.

        """
        # A copy, because the loop may add an answer meanwhile.
        answers = tuple(self._groups.get((key, trace), ()))
        if not answers:
            return NO_CAUSE
        fields = request.fields
        ids, texts = _ids_and_texts([fields.get(name) for name in _SAID])
        ids.update(value for value in request.metadata.values() if isinstance(value, str))
        # The newest answer counts, because some providers number the tool calls of each answer from 0.
        newest_by_id = {name: one.number for one in answers for name in one.ids}
        named = {newest_by_id[name] for name in ids & newest_by_id.keys()}
        said = "\0".join((*texts, *_unescaped(texts)))
        # Each text once, because agents often get equal answers. Its beginning first, because a long text that
        # is absent takes longer to search.
        quoted = {
            text
            for text in {text for one in answers for text in one.texts}
            if text[:SHORTEST_QUOTE] in said and text in said
        }
        found = [one for one in answers if one.number in named or not quoted.isdisjoint(one.texts)]
        if not found:
            return NO_CAUSE
        newest = found[-1]
        path = {*_path(newest, {one.interaction_id: one for one in answers})}
        is_more = any(one.interaction_id not in path for one in found)
        return Cause(
            newest.interaction_id,
            newest.trace_id,
            tuple(one.interaction_id for one in found) if is_more else (),
        )

    def named(self, key: str, answer_id: str) -> str | None:
        """Return the interaction of the answer with this id of its provider, or None. Other keys' do not count."""
        found = [
            one
            for (owner, _), answers in self._groups.items()
            if owner == key
            for one in answers
            if answer_id in one.ids
        ]
        return max(found, key=lambda one: one.number).interaction_id if found else None

    async def followed(
        self,
        work: Awaitable[StructuredOutcome | Exception],
        envelope: LLMEnvelope,
        cause: Cause,
        group: tuple[str, str],
        record: Callable[[Event], Awaitable[None]],
        shared: SharedCalls | None = None,
    ) -> StructuredOutcome | Exception:
        """Wait for a call, remember its answer, and record the quotations of its request.

        Args:
            work: The call.
            envelope: Its envelope.
            cause: The answers that its request repeats.
            group: Its API key and the trace that it names.
            record: Keeps an event.
            shared: The calls that servers of one bus share.

        """
        outcome = await work
        envelope = envelope if shared is None else shared.published(envelope)
        if isinstance(outcome, Exception):
            return outcome
        try:
            await self.add(group, envelope, outcome)
            if cause.quoted:
                await record(_quoted_event(envelope, cause))
        except Exception as e:  # noqa: BLE001 - an answer that is paid must reach its client
            log.warning("causes_not_recorded", envelope_id=envelope.envelope_id, reason=repr(e))
        return outcome

    async def add(self, group: tuple[str, str], envelope: LLMEnvelope, outcome: StructuredOutcome) -> None:
        """Remember the answer of a call. Of several attempts, it is the last one with an answer."""
        told = next((one for one in reversed(outcome.attempts) if one.trace is not None and one.text), None)
        if told is None:
            return
        if len(told.text) <= READ_AT_ONCE:
            ids, texts = answer_parts(told.text)
        else:
            ids, texts = await asyncio.to_thread(answer_parts, told.text)
        answer = _Answer(
            next(self._numbers), told.interaction_id, envelope.trace_id, envelope.causation_id, ids, texts
        )
        answers = self._groups.setdefault(group, [])
        self._groups.move_to_end(group)
        answers.append(answer)
        self._size += answer.size
        if len(answers) > ANSWERS_KEPT:
            self._size -= answers.pop(0).size
        # The newest trace stays, because its limit is that of its answers.
        while len(self._groups) > 1 and (
            len(self._groups) > self.most_traces or self._size > self.most_characters
        ):
            _, forgotten = self._groups.popitem(last=False)
            self._size -= sum(one.size for one in forgotten)


def answer_parts(body: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the ids of an answer, and its texts that are long enough to be quoted.

    Texts inside JSON count, too: agents put fields of an answer into prompts. A body that is not JSON has none.
    """
    answer = _parsed(body)
    if not isinstance(answer, Mapping):
        return frozenset(), ()
    ids, texts = _ids_and_texts([answer.get(name) for name in _ANSWERED])
    inside = [_parsed(text[text.find("{") : text.rfind("}") + 1]) for text in texts if "{" in text]
    texts += _ids_and_texts(inside)[1]
    kept = sorted(id_ for id_ in ids if 0 < len(id_) <= MOST_ID)[:MOST_IDS]
    if isinstance(own := answer.get("id"), str) and 0 < len(own) <= MOST_ID:
        kept.append(own)
    long = {text.strip() for text in texts if len(text.strip()) >= SHORTEST_QUOTE}
    return frozenset(kept), tuple(sorted(long, key=lambda text: (-len(text), text))[:MOST_TEXTS])


def _ids_and_texts(value: Any) -> tuple[set[str], list[str]]:
    """Return the ids and all texts in JSON. Without recursion, because the client chooses the depth."""
    ids: set[str] = set()
    texts: list[str] = []
    ahead = [value]
    while ahead:
        match ahead.pop():
            case str() as text:
                texts.append(text)
            case list() as items:
                ahead += items
            case dict() as members:
                ids.update(
                    named for name in _ID_FIELDS & members.keys() if isinstance(named := members[name], str)
                )
                ahead += members.values()
            case _:
                pass
    return ids, texts


def _unescaped(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts with escapes of JSON as they read without them: agents put JSON with answers into prompts.

    A text is not parsed, because JSON can be anywhere in it.
    """
    for text in texts:
        if "\\" in text:
            plain = _ESCAPE.sub(_character, text)
            # Half characters stay as they are: an answer has none.
            yield _PAIR.sub(
                lambda pair: chr(0x10000 + ((ord(pair[1]) - 0xD800) << 10) + ord(pair[2]) - 0xDC00), plain
            )


def _character(escape: re.Match[str]) -> str:
    digits, letter = escape.groups()
    return chr(int(digits, 16)) if digits else _LETTERS.get(letter, letter)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _path(answer: _Answer, by_interaction: Mapping[str, _Answer]) -> Iterator[str]:
    """Yield an answer and its causes. An answer is older than its effects, so that the path ends."""
    at: _Answer | None = answer
    while at is not None:
        yield at.interaction_id
        at = by_interaction.get(at.cause)


def _quoted_event(envelope: LLMEnvelope, cause: Cause) -> Event:
    return RequestQuoted(interactions=cause.quoted).as_event(
        event_id=derived_id(RequestQuoted.KIND, envelope.tenant_id, envelope.envelope_id),
        trace_id=envelope.trace_id,
        tenant_id=envelope.tenant_id,
        time=envelope.created_at,
        causation_id=envelope.envelope_id,
    )

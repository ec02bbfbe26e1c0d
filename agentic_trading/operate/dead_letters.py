"""Dead letters for operators: list, replay and purge."""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Self

from agentic_trading.bus import topic as topic_api
from agentic_trading.bus.codec import envelope_message, read_dead_letter, read_envelope
from agentic_trading.bus.errors import MessageTooLargeError, TopicSetupError, UnreadableMessageError
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.signing import PRINCIPAL_HEADER, REPLAYED_HEADER, SIGNATURE_HEADER, Signer
from agentic_trading.canonical import sha256_hex
from agentic_trading.errors import TradingError
from agentic_trading.ids import derived_id
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.worker.delivery import TOO_OLD, SendAge

_NEAREST: Final = 3
_NEAR_ID: Final = 0.8
_LEAST_BEGINNING: Final = 8
"""The shortest beginning of an id that is accepted. Random ids share fewer characters."""
_LANE: Final = re.compile(r"\.[a-z0-9][a-z0-9-]*", re.ASCII)


class ReplayError(TradingError, ValueError):
    """A dead letter cannot be published again.

    Attributes:
        letter_id: The id of the letter.
        problem: The reason.

    """

    def __init__(self, letter_id: str, problem: str) -> None:
        self.letter_id = letter_id
        self.problem = problem
        super().__init__(f"dead letter {letter_id} cannot be replayed: {problem}")


class UnknownLetterError(TradingError, ValueError):
    """No dead letter has this id or reason.

    Attributes:
        name: `id` or `reason`.
        value: The requested value.
        nearest: Similar known values.

    """

    def __init__(self, name: str, value: str, known: Collection[str]) -> None:
        self.name = name
        self.value = value
        begins = [each for each in sorted(known) if begins_with(each, value)][:_NEAREST]
        near = _NEAR_ID if name == "id" else 0.0
        self.nearest = tuple(begins or get_close_matches(value, sorted(known), _NEAREST, near))
        allowed = "`dlq list` shows all letters" if known else "There are no dead letters"
        if self.nearest:
            allowed = f"The nearest are {', '.join(self.nearest)}"
        super().__init__(f"no dead letter has the {name} {value!r:.200}. {allowed}")


_UNPROVED = frozenset({"signature", "not_allowed"})
"""Reasons of letters whose sender was not proved. With --again, they must be named by id."""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """The letters to select. An empty field selects all."""

    ids: Collection[str] = ()
    reason: str = ""
    topic: str = ""
    since: datetime | None = None

    def has(self, letter: topic_api.DeadLetter) -> bool:
        """Whether a letter is selected."""
        return (
            (not self.ids or letter.id in self.ids)
            and self.reason in {"", letter.reason}
            and self.topic in {"", letter.source_topic}
            and (self.since is None or letter.time >= self.since)
        )


@dataclass(slots=True)
class LetterScan:
    """Counts of a scan of the dead letters.

    Attributes:
        copies: The number of messages of each letter, by id.
        reasons: The number of letters, by reason.
        topics: The number of letters, by source topic.
        claims: Hashes of letters that claim to be a replay, by the id of the replayed letter.
        unreadable: Messages that are not dead letters.

    """

    copies: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)
    claims: dict[str, set[str]] = field(default_factory=dict)
    unreadable: int = 0

    async def letters(
        self, broker: topic_api.Broker, meant: LetterFilter
    ) -> AsyncGenerator[topic_api.DeadLetter]:
        """Yield the selected letters, each once. Copies of a letter have the same id."""
        async with aclosing(broker.scan(topic_api.DEAD_LETTERS)) as deliveries:
            async for delivery in deliveries:
                letter = letter_in(delivery)
                if letter is None:
                    self.unreadable += 1
                    continue
                self.copies[letter.id] += 1
                if self.copies[letter.id] > 1:
                    continue
                self.reasons[letter.reason] += 1
                self.topics[letter.source_topic] += 1
                if earlier := replay_of(letter):
                    self.claims.setdefault(earlier, set()).add(letter.raw_sha256)
                if meant.has(letter):
                    yield letter

    async def replayed(self, broker: topic_api.Broker) -> set[str]:
        """Return the ids of letters whose replay is a dead letter again."""
        # The claim is checked by the value, because any sender may write the header: it is not signed.
        if not self.claims:
            return set()
        async with aclosing(LetterScan().letters(broker, LetterFilter([*self.claims]))) as letters:
            return {each.id async for each in letters if self.claims[each.id] & {*_replay_hashes(each)}}

    def require(self, meant: LetterFilter) -> None:
        """After a scan, raise `UnknownLetterError` for an id or reason that was not found."""
        reasons = [meant.reason] if meant.reason else []
        for name, wanted, known in (("id", meant.ids, self.copies), ("reason", reasons, self.reasons)):
            for each in wanted:
                if each not in known:
                    raise UnknownLetterError(name, each, known)


@dataclass(frozen=True, slots=True)
class ListedLetter:
    """A letter without its message.

    `problem` is the reason why it cannot be replayed. `replay_of` is the letter that it is a replay of. Both
    may be empty.
    """

    id: str
    time: datetime
    reason: str
    source_topic: str
    source_partition: int
    position: int
    envelope_id: str
    size: int
    problem: str
    replay_of: str

    @classmethod
    def of(cls, letter: topic_api.DeadLetter, age: SendAge) -> Self:
        """Return a letter without its message."""
        return cls(
            letter.id,
            letter.time,
            letter.reason,
            letter.source_topic,
            letter.source_partition,
            letter.position,
            letter.envelope_id,
            letter.raw_size,
            replay_problem(letter, age),
            replay_of(letter),
        )


def replay_of(letter: topic_api.DeadLetter) -> str:
    """Return the id of the letter that this one is a replay of. Empty for none."""
    return letter.headers.get(REPLAYED_HEADER, "")


def replay_problem(letter: topic_api.DeadLetter, age: SendAge) -> str:
    """Return why the message of a letter cannot be published unchanged. Empty if it can."""
    try:
        Replay(age=age).message(letter)
    except ReplayError as e:
        return e.problem
    return ""


def letter_in(delivery: Delivery) -> topic_api.DeadLetter | None:
    """Return the letter in a message, or None for other messages."""
    try:
        return read_dead_letter(delivery.message)
    except UnreadableMessageError:
        return None


async def letter_of(broker: topic_api.Broker, letter_id: str) -> tuple[topic_api.DeadLetter, int]:
    """Return a letter, and the number of its copies.

    Raises:
        UnknownLetterError: If no letter has the id, or several start with it.

    """
    scan = LetterScan()
    async with aclosing(scan.letters(broker, LetterFilter())) as letters:
        found = {each.id: each async for each in letters if begins_with(each.id, letter_id)}
    letter = found.get(letter_id) or (next(iter(found.values())) if len(found) == 1 else None)
    if letter is None:
        raise UnknownLetterError("id", letter_id, scan.copies)
    return letter, scan.copies[letter.id]


def begins_with(letter_id: str, beginning: str) -> bool:
    """Whether `beginning` is an id or a long enough prefix of it."""
    is_long = len(beginning) >= _LEAST_BEGINNING
    return letter_id == beginning or (is_long and letter_id.startswith(beginning))


@dataclass(frozen=True, slots=True)
class Replay:
    """How letters are published again.

    Attributes:
        again: Whether envelopes get a new id and run as new calls. Otherwise messages are published
            unchanged.
        signer: Signs new envelopes.
        age: The age limit of workers. Envelopes that they refuse as too old need `again`.

    """

    again: bool = False
    signer: Signer | None = None
    age: SendAge = field(default_factory=SendAge)

    def message(self, letter: topic_api.DeadLetter) -> Message:
        """Return the message to publish for a letter.

        Without `again` it is unchanged except for a header with the letter's id, so its signature stays
        valid. With `again` its envelope gets an id derived from the letter's id, so that repeating the replay
        repeats no call. Its cause is the old envelope. No client receives its reply.

        Raises:
            ReplayError: If the letter cannot be replayed.

        """
        _source_of(letter)
        try:
            message = letter.message()
        except ValueError as e:
            raise ReplayError(letter.id, str(e).replace(f"dead letter {letter.id}", "it", 1)) from e
        if self.again:
            message = self._new_envelope(letter, message)
        else:
            self._require_recent(letter, message)
        return Message(message.key, message.value, {**message.headers, REPLAYED_HEADER: letter.id})

    def _require_recent(self, letter: topic_api.DeadLetter, message: Message) -> None:
        """Raise `ReplayError` for an envelope that workers would refuse as too old."""
        created_at = None
        with suppress(UnreadableMessageError):
            created_at = _envelope_in(letter, message).created_at
        refusal = self.age.refusal(message, created_at)
        if refusal is not None and refusal.reason == TOO_OLD:
            raise ReplayError(
                letter.id, f"{refusal.detail}. Use --again to make a new envelope, which is charged again"
            )

    def _new_envelope(self, letter: topic_api.DeadLetter, message: Message) -> Message:
        new = envelope_message(_envelope_again(letter, message), sent_at=self.age.wall.now())
        is_signed = message.headers.keys() >= {PRINCIPAL_HEADER, SIGNATURE_HEADER}
        if is_signed and self.signer is None:
            principal = message.headers[PRINCIPAL_HEADER]
            problem = f"{principal!r:.200} has signed it, and --again makes it another envelope"
            raise ReplayError(
                letter.id, f"{problem}. Use --sign-as PRINCIPAL, with its key in the configuration"
            )
        return new if self.signer is None else self.signer.sign(new)

    async def publish(self, broker: topic_api.Broker, letter: topic_api.DeadLetter) -> None:
        """Publish a letter's message to its source topic. Raises `ReplayError`."""
        message = self.message(letter)
        try:
            await broker.publish(_source_of(letter), message)
        except (MessageTooLargeError, TopicSetupError) as e:
            raise ReplayError(letter.id, str(e)) from e


def _envelope_in(letter: topic_api.DeadLetter, message: Message) -> LLMEnvelope:
    """Return the envelope in a letter's message. Raises `UnreadableMessageError`."""
    return read_envelope(Delivery(letter.source_topic, letter.position, message, 1))


def _envelope_again(letter: topic_api.DeadLetter, message: Message) -> LLMEnvelope:
    """Return the envelope in a message as a new one, caused by the old one. Raises `ReplayError`."""
    if letter.source_topic == topic_api.EVENTS.name:
        raise ReplayError(letter.id, "it contains an event, which runs nothing. Replay it without --again")
    try:
        envelope = _envelope_in(letter, message)
    except UnreadableMessageError as e:
        raise ReplayError(letter.id, f"it contains no readable envelope ({e})") from e
    new_id = derived_id("replay", letter.id)
    return envelope.model_copy(
        update={
            "envelope_id": new_id,
            "idempotency_key": new_id,
            "parent_envelope_id": envelope.envelope_id,
            "causation_id": envelope.envelope_id,
        }
    )


def _replay_hashes(letter: topic_api.DeadLetter) -> Iterator[str]:
    """Yield the hashes of both values that a replay may publish."""
    yield letter.raw_sha256
    with suppress(ValueError):  # it is cut, or holds no envelope
        yield sha256_hex(_envelope_again(letter, letter.message()).wire)


def _require_proved(letter: topic_api.DeadLetter) -> None:
    if letter.reason in _UNPROVED:
        problem = f"{letter.reason}: its sender was not proved, or may not send it"
        raise ReplayError(letter.id, f"{problem}. Inspect it, then name its id with --again")


def _source_of(letter: topic_api.DeadLetter) -> topic_api.Topic[Any]:
    """Return the source topic of a letter. Raises `ReplayError` if no worker reads it."""
    if letter.source_topic == topic_api.EVENTS.name:
        return topic_api.EVENTS
    # The letter itself names the topic, so it is not trusted: otherwise a replay could write to any topic.
    for workflow, topic in topic_api.ENVELOPES.items():
        lane = letter.source_topic.removeprefix(topic.name)
        if lane == "" or _LANE.fullmatch(lane):
            return topic_api.lane_topic(workflow, lane[1:])
    raise ReplayError(letter.id, f"no worker reads its topic, {letter.source_topic!r:.200}")


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """A plan of letters to publish again.

    Attributes:
        replay: How they are published.
        letters: The source topic of each letter, by id.
        refused: Letters that cannot be replayed, with reasons.
        came_back: Letters left out because their replay is a dead letter again. Letters named by id are not
            left out.

    """

    replay: Replay
    letters: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[ReplayError, ...] = ()
    came_back: int = 0

    @classmethod
    async def of(cls, broker: topic_api.Broker, replay: Replay, meant: LetterFilter) -> Self:
        """Return the plan for the selected letters. Raises `UnknownLetterError`."""
        letters: dict[str, str] = {}
        refused: list[ReplayError] = []
        scan = LetterScan()
        async with aclosing(scan.letters(broker, meant)) as found:
            async for letter in found:
                try:
                    if replay.again and not meant.ids:
                        _require_proved(letter)
                    replay.message(letter)
                except ReplayError as e:
                    refused.append(e)
                else:
                    letters[letter.id] = letter.source_topic
        scan.require(meant)
        if meant.ids:
            return cls(replay, letters, tuple(refused))
        found_ids = {*letters, *(each.letter_id for each in refused)}
        replayed = await scan.replayed(broker)
        return cls(
            replay,
            {id_: topic for id_, topic in letters.items() if id_ not in replayed},
            tuple(each for each in refused if each.letter_id not in replayed),
            len(found_ids & replayed),
        )

    async def publish(self, broker: topic_api.Broker) -> Self:
        """Publish the planned messages, in order per key. Return the published and the refused ones."""
        published: dict[str, str] = {}
        refused: list[ReplayError] = []
        async with aclosing(LetterScan().letters(broker, LetterFilter([*self.letters]))) as found:
            async for letter in found:
                try:
                    await self.replay.publish(broker, letter)
                except ReplayError as e:
                    refused.append(e)
                else:
                    published[letter.id] = letter.source_topic
        return replace(self, letters=published, refused=(*self.refused, *refused))


@dataclass(frozen=True, slots=True)
class Purge:
    """Dead letters to delete.

    Attributes:
        positions: The position before which messages are deleted, by partition.
        messages: The number of messages to delete.
        stays: Older letters that stay, because they come after newer ones.

    """

    positions: Mapping[int, int]
    messages: int
    stays: int

    @classmethod
    async def before(cls, broker: topic_api.Broker, time: datetime | None) -> Self:
        """Return the purge of letters older than `time`, or of all letters without it."""
        positions: dict[int, int] = {}
        ended: set[int] = set()
        messages = stays = 0
        async with aclosing(broker.scan(topic_api.DEAD_LETTERS)) as deliveries:
            async for delivery in deliveries:
                letter = letter_in(delivery)
                is_old = time is None or letter is None or letter.time < time
                if not is_old:
                    ended.add(delivery.partition)
                elif delivery.partition in ended:
                    stays += 1
                else:
                    positions[delivery.partition] = delivery.position + 1
                    messages += 1
        return cls(positions, messages, stays)

    async def run(self, broker: topic_api.Broker) -> None:
        """Delete the letters for all readers."""
        await broker.delete_before(topic_api.DEAD_LETTERS, self.positions)

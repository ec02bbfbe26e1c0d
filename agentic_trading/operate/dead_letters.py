"""Dead letters as an operator deals with them: found, published again, deleted."""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
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
"""How many characters of an id stand for it; ids that were drawn by chance share fewer."""
_AGE: Final = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_LANE: Final = re.compile(r"\.[a-z0-9][a-z0-9-]*", re.ASCII)
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}


class ReplayError(TradingError, ValueError):
    """The message in `letter_id` cannot be published again, for `problem`."""

    def __init__(self, letter_id: str, problem: str) -> None:
        self.letter_id = letter_id
        self.problem = problem
        super().__init__(f"dead letter {letter_id} cannot be replayed: {problem}")


class UnknownLetterError(TradingError, ValueError):
    """No dead letter that is kept has this `value` of a `name`, an id or a reason; `nearest` are those of `known` near to it."""

    def __init__(self, name: str, value: str, known: Collection[str]) -> None:
        self.name = name
        self.value = value
        begins = [each for each in sorted(known) if begins_with(each, value)][:_NEAREST]
        near = _NEAR_ID if name == "id" else 0.0
        self.nearest = tuple(begins or get_close_matches(value, sorted(known), _NEAREST, near))
        allowed = "dlq list names those that there are" if known else "there are no dead letters"
        if self.nearest:
            allowed = f"the nearest are {', '.join(self.nearest)}"
        super().__init__(f"no dead letter has the {name} {value!r:.200}; {allowed}")


_UNPROVED = frozenset({"signature", "not_allowed"})
"""Reasons of letters that become new envelopes only by their id: who sent them was not proved, or might not send them."""


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant; what is left out restricts nothing, and without anything all are."""

    ids: Collection[str] = ()
    reason: str = ""
    topic: str = ""
    since: datetime | None = None

    def has(self, letter: topic_api.DeadLetter) -> bool:
        """Whether a letter is meant."""
        return (
            (not self.ids or letter.id in self.ids)
            and self.reason in {"", letter.reason}
            and self.topic in {"", letter.source_topic}
            and (self.since is None or letter.time >= self.since)
        )


@dataclass(slots=True)
class LetterScan:
    """What a scan of the dead letters has found so far: how often each id, reason and topic, and how many messages that are no letters.

    `claims` are the hashes of the values of letters that say to be the replay of another one, by its id.
    """

    copies: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    topics: Counter[str] = field(default_factory=Counter)
    claims: dict[str, set[str]] = field(default_factory=dict)
    unreadable: int = 0

    async def letters(
        self, broker: topic_api.Broker, meant: LetterFilter
    ) -> AsyncGenerator[topic_api.DeadLetter]:
        """Yield the letters that are meant, each once: a letter that was published twice has the same id."""
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
        """Return the ids of letters whose replay is a letter again, by its value: any sender may write the header, which is not signed."""
        if not self.claims:
            return set()
        async with aclosing(LetterScan().letters(broker, LetterFilter([*self.claims]))) as letters:
            return {each.id async for each in letters if self.claims[each.id] & {*_replay_hashes(each)}}

    def require(self, meant: LetterFilter) -> None:
        """Raise `UnknownLetterError` for an id or a reason that was not found; for a scan that has ended."""
        reasons = [meant.reason] if meant.reason else []
        for name, wanted, known in (("id", meant.ids, self.copies), ("reason", reasons, self.reasons)):
            for each in wanted:
                if each not in known:
                    raise UnknownLetterError(name, each, known)


@dataclass(frozen=True, slots=True)
class ListedLetter:
    """A letter without its message; `problem` is why it cannot be replayed, empty where it can.

    `replay_of` is the letter whose replay it is, empty for none.
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
        """Return a letter as it is listed."""
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
    """Return the id of the letter whose replay this is; empty for none."""
    return letter.headers.get(REPLAYED_HEADER, "")


def replay_problem(letter: topic_api.DeadLetter, age: SendAge) -> str:
    """Return why the message of a letter cannot be published as it was; empty where it can."""
    try:
        Replay(age=age).message(letter)
    except ReplayError as e:
        return e.problem
    return ""


def moment_of(text: str, now: datetime) -> datetime:
    """Return the moment of an ISO 8601 time, in UTC unless it says otherwise, or of an age such as `90m`, `12h`, `7d`.

    Raises `ValueError`, or `OverflowError` for one before the calendar.
    """
    if age := _AGE.fullmatch(text):
        return now - timedelta(**{_UNITS[age[2]]: int(age[1])})
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def letter_in(delivery: Delivery) -> topic_api.DeadLetter | None:
    """Return the letter in a message of their topic, or None where something else was written there."""
    try:
        return read_dead_letter(delivery.message)
    except UnreadableMessageError:
        return None


async def letter_of(broker: topic_api.Broker, letter_id: str) -> tuple[topic_api.DeadLetter, int]:
    """Return a letter, and how many copies there are; raises `UnknownLetterError`.

    The beginning of an id will do where no other id begins so.
    """
    scan = LetterScan()
    async with aclosing(scan.letters(broker, LetterFilter())) as letters:
        found = {each.id: each async for each in letters if begins_with(each.id, letter_id)}
    letter = found.get(letter_id) or (next(iter(found.values())) if len(found) == 1 else None)
    if letter is None:
        raise UnknownLetterError("id", letter_id, scan.copies)
    return letter, scan.copies[letter.id]


def begins_with(letter_id: str, beginning: str) -> bool:
    """Whether an id is meant by its beginning, or by all of it."""
    is_long = len(beginning) >= _LEAST_BEGINNING
    return letter_id == beginning or (is_long and letter_id.startswith(beginning))


@dataclass(frozen=True, slots=True)
class Replay:
    """How messages are published again: as they were, or with `again` as new envelopes, signed by `signer`.

    `age` is the limit of the workers: an envelope that they would refuse as too old is published with `again` only.
    """

    again: bool = False
    signer: Signer | None = None
    age: SendAge = field(default_factory=SendAge)

    def message(self, letter: topic_api.DeadLetter) -> Message:
        """Return what is published for a letter; raises `ReplayError` where there is nothing to publish.

        A message goes as it was, with a header that names the letter: its signature stays valid. With `again`
        its envelope gets an id that follows from the letter's, so that the same letter gives the same envelope, and is
        caused by the one that it was, and sent now; nothing is answered on the bus.
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
        """Raise `ReplayError` for an envelope that workers refuse as too old."""
        created_at = None
        with suppress(UnreadableMessageError):
            created_at = _envelope_in(letter, message).created_at
        refusal = self.age.refusal(message, created_at)
        if refusal is not None and refusal.reason == TOO_OLD:
            raise ReplayError(
                letter.id, f"{refusal.detail}; allowed is --again, which makes a new envelope and pays for it"
            )

    def _new_envelope(self, letter: topic_api.DeadLetter, message: Message) -> Message:
        new = envelope_message(_envelope_again(letter, message), sent_at=self.age.wall.now())
        is_signed = message.headers.keys() >= {PRINCIPAL_HEADER, SIGNATURE_HEADER}
        if is_signed and self.signer is None:
            principal = message.headers[PRINCIPAL_HEADER]
            problem = f"{principal!r:.200} has signed it, and --again makes it another envelope"
            raise ReplayError(
                letter.id, f"{problem}; allowed is --sign-as PRINCIPAL, with its key in the configuration"
            )
        return new if self.signer is None else self.signer.sign(new)

    async def publish(self, broker: topic_api.Broker, letter: topic_api.DeadLetter) -> None:
        """Publish a letter's message to its source topic; raises `ReplayError` where that cannot be."""
        message = self.message(letter)
        try:
            await broker.publish(_source_of(letter), message)
        except (MessageTooLargeError, TopicSetupError) as e:
            raise ReplayError(letter.id, str(e)) from e


def _envelope_in(letter: topic_api.DeadLetter, message: Message) -> LLMEnvelope:
    """Return the envelope in the message of a letter; raises `UnreadableMessageError`."""
    return read_envelope(Delivery(letter.source_topic, letter.position, message, 1))


def _envelope_again(letter: topic_api.DeadLetter, message: Message) -> LLMEnvelope:
    """Return the envelope in a message as a new one that the old one caused; raises `ReplayError`."""
    if letter.source_topic == topic_api.EVENTS.name:
        raise ReplayError(
            letter.id, "it holds an event, which runs nothing; allowed is a replay without --again"
        )
    try:
        envelope = _envelope_in(letter, message)
    except UnreadableMessageError as e:
        raise ReplayError(letter.id, f"it holds no envelope that can be read here ({e})") from e
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
    """Yield the hash of what a replay of a letter publishes: its value as it was, and that of the new envelope."""
    yield letter.raw_sha256
    with suppress(ValueError):  # it is cut, or holds no envelope
        yield sha256_hex(_envelope_again(letter, letter.message()).wire)


def _require_proved(letter: topic_api.DeadLetter) -> None:
    if letter.reason in _UNPROVED:
        problem = f"{letter.reason}: its sender was not proved, or may not send it"
        raise ReplayError(letter.id, f"{problem}; allowed with --again is its id, after a look at it")


def _source_of(letter: topic_api.DeadLetter) -> topic_api.Topic[Any]:
    """Return the topic that a message is from; raises `ReplayError` for one that no worker reads.

    A letter says itself where its message is from, and is not believed beyond that.
    """
    if letter.source_topic == topic_api.EVENTS.name:
        return topic_api.EVENTS
    for workflow, topic in topic_api.ENVELOPES.items():
        lane = letter.source_topic.removeprefix(topic.name)
        if lane == "" or _LANE.fullmatch(lane):
            return topic_api.lane_topic(workflow, lane[1:])
    raise ReplayError(letter.id, f"no worker reads its topic, {letter.source_topic!r:.200}")


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Which letters are published again, with their topics, and why others are not.

    `came_back` are those left out because their replay is a letter of its own, which stands for them; one that is named by
    its id is not left out.
    """

    replay: Replay
    letters: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[ReplayError, ...] = ()
    came_back: int = 0

    @classmethod
    async def of(cls, broker: topic_api.Broker, replay: Replay, meant: LetterFilter) -> Self:
        """Return the plan for the letters that are meant; raises `UnknownLetterError`."""
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
        """Publish the planned messages, in the order of each key; return what was published, and what could not be."""
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
    """What is deleted: all that stands before `positions`, by partition.

    That are `messages`. `stays` are older letters that stay, as they stand behind newer ones.
    """

    positions: Mapping[int, int]
    messages: int
    stays: int

    @classmethod
    async def before(cls, broker: topic_api.Broker, time: datetime | None) -> Self:
        """Return what is to be deleted to be rid of letters older than `time`; without one, of all that are there now."""
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
        """Delete it, for every reader."""
        await broker.delete_before(topic_api.DEAD_LETTERS, self.positions)

"""The recording that a replay serves: volatile texts, the nearest record of a miss, and the use of records."""

import asyncio
import json
import re
import signal
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from typing_extensions import override

from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.verbatim import VerbatimRequest
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.server.calls import agent_type_of, key_name_of

STRUCK_WITHIN_S: Final = 1.0
"""Seconds of CPU in which the patterns must search one request. The server does nothing else meanwhile."""

MOST_LINE: Final = 16_384
"""The characters of the longest line that is searched. A pattern can take a time of the square of a line."""

MOST_COMPARED: Final = 2_000_000
"""The most values of recorded requests that one miss is compared with."""

DIFFERENCES_NAMED: Final = 3
CHARACTERS_SHOWN: Final = 64
MISSES_NAMED: Final = 10
UNUSED_NAMED: Final = 10
_BEFORE: Final = 16
"""The characters that are shown before the first difference."""

_LINE_END: Final = re.compile(r"(\n|\\n)")
"""The end of a line, also in JSON within a text: a pattern such as `at .*` would else remove all that follows."""

_LIKE_ALL: Final = "Buy 12.50 of NVDA (limit), or sell? x_1"
"""A line of all kinds of characters. A pattern that leaves no letter and no digit of it would make all texts equal."""

_ABSENT: Final = "nothing"


_Place = tuple[str, str, str]
"""Tenant, agent with its agent type, and step of a call."""


class SlowPatternError(Exception):
    """The patterns of volatile texts took too long for a request."""


class VolatileTexts:
    """Patterns of texts that differ between runs, such as the time.

    A match is within one line of a text of a request's body. In JSON within a text, the escape of a
    line's end ends it, too. Lines of more than `MOST_LINE` characters are not
    searched. Use it in the main thread, because a search is ended by a signal.

    Args:
        patterns: Regular expressions of Python.
        within_s: The seconds of CPU for one request.

    Raises:
        OptionError: If a pattern is invalid, empty, or matches every text.

    """

    def __init__(self, patterns: Sequence[str], within_s: float = STRUCK_WITHIN_S) -> None:
        self._patterns = tuple(map(_compiled, patterns))
        self._within_s = within_s

    def __bool__(self) -> bool:
        """Return whether there is a pattern."""
        return bool(self._patterns)

    def left(self, values: Sequence[tuple[str, str]]) -> list[bytes]:
        """Return the hash of each value without its volatile texts.

        Raises:
            SlowPatternError: If it takes too long.

        """
        with _cpu_limit(self._within_s):
            struck = [
                (path, self._strike(value) if path.startswith(_BODY) else value) for path, value in values
            ]
        return [sha256(json.dumps(one).encode()).digest() for one in struck]

    def _strike(self, value: str) -> str:
        if not value.startswith('"'):
            return value
        # Lines and the ends of lines, which stay.
        parts = _LINE_END.split(json.loads(value))
        for pattern in self._patterns:
            parts[::2] = [pattern.sub("", line) if len(line) <= MOST_LINE else line for line in parts[::2]]
        return json.dumps("".join(parts), ensure_ascii=False)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as e:
        allowed = "a regular expression of Python, such as 'retrieved on: [0-9: -]+'"
        raise OptionError("--volatile", f"{pattern!r:.200}, an invalid pattern ({e})", allowed) from e
    if not pattern:
        raise OptionError("--volatile", "empty", "a regular expression of the text that differs between runs")
    with _cpu_limit(STRUCK_WITHIN_S), suppress(SlowPatternError):  # a slow one is named with its record
        if not any(map(str.isalnum, compiled.sub("", _LIKE_ALL))):
            found = f"{pattern!r:.200}, which matches every text, so that all requests would be equal"
            raise OptionError(
                "--volatile", found, "a pattern of the text that differs, and of the words before it"
            )
    return compiled


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Raise `SlowPatternError` if the block uses more CPU. `re` looks for signals while it searches."""

    def end(_number: int, _frame: object) -> None:
        raise SlowPatternError

    before = signal.signal(signal.SIGVTALRM, end)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    finally:
        signal.signal(signal.SIGVTALRM, before)


_BODY: Final = "body."


def request_values(envelope: LLMEnvelope) -> list[tuple[str, str]]:
    """Return path and JSON text of each value that the hash of a client's request covers."""
    asked = VerbatimRequest.of(envelope.context)
    settings = {
        "api": asked.api,
        "anthropic-version": asked.version,
        "anthropic-beta": asked.betas,
        "model": f"{envelope.provider}/{envelope.model}",
        "output limit": envelope.budget.max_output_tokens,
        "schema": envelope.output_schema_json.decode(),
        "output policy": envelope.output_policy.wire.decode(),
    }
    return [
        (path, json.dumps(value, ensure_ascii=False))
        for path, value in (*settings.items(), *_leaves(asked.fields))
    ]


def _leaves(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each scalar and each empty container. A loop, because bodies may be deep."""
    waiting: list[tuple[str, Any]] = [(f"{_BODY}{name}", value) for name, value in fields.items()]
    while waiting:
        path, value = waiting.pop()
        match value:
            case dict() if value:
                waiting += [(f"{path}.{name}", inner) for name, inner in value.items()]
            case list() if value:
                waiting += [(f"{path}[{place}]", inner) for place, inner in enumerate(value)]
            case _:
                yield path, value


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded attempt: its call, its id in the log, and the numbers of its request's values."""

    number: int
    place: _Place
    request_hash: str
    envelope_id: str
    attempt: int
    interaction_id: str
    values: "array[int]"


@dataclass(frozen=True, slots=True)
class Replayed:
    """The use of a recording.

    Attributes:
        misses: The number of attempts that were not recorded.
        unused: The number of recorded attempts that were not requested.
        volatile: The number of calls that matched a record only without their volatile texts.
        missed: The messages of the first misses.
        first_unused: The ids of the first unused records, in the order of the log.
        matched: The request hash of the record, by the id of the envelope that matched it without volatile texts.

    """

    misses: int
    unused: int
    volatile: int = 0
    missed: Sequence[str] = ()
    first_unused: Sequence[str] = ()
    matched: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> Sequence[str]:
        """The use as lines of text."""
        counts = f"replay: {self.misses} attempts without a record, {self.unused} records unused"
        matched = f", {self.volatile} calls matched without volatile texts" if self.volatile else ""
        return (
            f"{counts}{matched}",
            *_listed("miss", self.missed, self.misses),
            *_listed("unused", self.first_unused, self.unused),
        )


def _listed(name: str, first: Sequence[str], count: int) -> Iterator[str]:
    yield from (f"{name}: {one}" for one in first)
    if count > len(first):
        yield f"{name}: {count - len(first)} more"


class ServedRecording(port_adapters.Recording):
    """Serve the recorded requests of clients, and explain misses by the nearest unused record.

    A record answers calls of the API key that made it, so that two keys of one agent do not exchange answers. A key
    that made no record gets those of its agent, if they are all of one key.

    With `volatile` texts, a request without a record is compared again without these texts. Each record still
    answers one call, in the order of the log.

    Args:
        volatile: The texts that differ between runs.
        redaction: The secrets to remove from messages.
        key: The API key whose records are served. Empty serves those of all keys.

    """

    # Keys of one principal share the count of an agent's occurrences.
    may_skip = True

    def __init__(self, volatile: VolatileTexts, redaction: Redaction, *, key: str = "") -> None:
        super().__init__()
        self._only = key
        # The recorded agent types, which name the keys, by tenant and agent.
        self._types: dict[tuple[str, str], set[str]] = {}
        self._volatile = volatile
        self._redaction = redaction
        self._records: list[_Recorded] = []
        # Requests of one conversation share most of their values, so that each value is kept once.
        self._numbers: dict[tuple[str, str], int] = {}
        self._values: list[tuple[str, str]] = []
        self._by_struck: dict[tuple[_Place, int, bytes], list[_Recorded]] = {}
        self._matched: dict[str, _Recorded] = {}
        self._slow: set[str] = set()
        self._left: dict[tuple[str, str], bytes] = {}
        self._messages: dict[tuple[str, int, int], str] = {}

    @override
    def add(self, interaction: LLMInteraction) -> None:
        """Add an attempt. Raises `OptionError` if the patterns of volatile texts are too slow for it."""
        envelope, result = interaction.envelope, interaction.result
        if envelope.response_format is not ResponseFormat.VERBATIM:
            return  # no client can ask for it, so that it would be listed as unused
        # Before the others are left out, because another key of the agent would else get the answers of this one.
        self._types.setdefault((envelope.tenant_id, envelope.agent_id), set()).add(envelope.agent_type)
        if self._only not in ("", key_name_of(envelope.agent_type)):
            return
        super().add(interaction)
        values = request_values(envelope)
        numbers = array("L", (self._number(value) for value in values))
        recorded = _Recorded(
            len(self._records) + 1, self._recorded_place(envelope), envelope.request_hash, envelope.envelope_id,
            result.attempt_number, interaction.interaction_id, numbers,
        )  # fmt: skip
        self._records.append(recorded)
        if self._volatile:
            try:
                struck = self._struck(values, is_kept=True)
            except SlowPatternError as e:
                found = f"too slow: it takes more than {STRUCK_WITHIN_S:g} s for {interaction.interaction_id}"
                allowed = "a pattern without repetitions of repetitions, such as (a+)+"
                raise OptionError("--volatile", found, allowed) from e
            self._by_struck.setdefault((recorded.place, recorded.attempt, struck), []).append(recorded)

    @override
    def _recorded_place(self, envelope: LLMEnvelope) -> _Place:
        return _place(envelope, envelope.agent_type)

    @override
    def _asked_place(self, envelope: LLMEnvelope) -> _Place:
        known = self._types.get((envelope.tenant_id, envelope.agent_id), set())
        is_renamed = len(known) == 1 and envelope.agent_type not in known
        return _place(envelope, *(known if is_renamed else (envelope.agent_type,)))

    def _struck(self, values: Sequence[tuple[str, str]], *, is_kept: bool = False) -> bytes:
        """Return the hash of a request without its volatile texts. Each value is searched once if it is kept."""
        new = [value for value in values if value not in self._left]
        left = dict(zip(new, self._volatile.left(new), strict=True))
        hashes = sorted(left.get(value) or self._left[value] for value in values)
        if is_kept:
            self._left.update(left)
        return sha256(b"".join(hashes)).digest()

    def _number(self, value: tuple[str, str]) -> int:
        number = self._numbers.setdefault(value, len(self._values))
        if number == len(self._values):
            self._values.append(value)
        return number

    @override
    def _found(self, envelope: LLMEnvelope, attempt: int) -> LLMResult | None:
        if (found := super()._found(envelope, attempt)) is not None:
            return found
        # Further attempts belong to the record of the first one.
        recorded = self._matched.get(envelope.envelope_id) or self._matching(envelope, attempt)
        if recorded is None:
            return None
        same = self._known[recorded.request_hash][recorded.place]
        if (recorded.envelope_id, attempt) not in same.results:
            return None
        self._matched[envelope.envelope_id] = recorded
        return same.take(recorded.envelope_id, envelope.envelope_id, attempt)

    def _matching(self, envelope: LLMEnvelope, attempt: int) -> _Recorded | None:
        """Return the first free record of the same request without volatile texts, or None."""
        if not self._volatile or envelope.response_format is not ResponseFormat.VERBATIM:
            return None
        try:
            struck = self._struck(request_values(envelope))
        except SlowPatternError:
            self._slow.add(envelope.envelope_id)
            return None
        rows = self._by_struck.get((self._asked_place(envelope), attempt, struck), ())
        return next((one for one in rows if self._is_free(one)), None)

    def _is_free(self, one: _Recorded) -> bool:
        return self._known[one.request_hash][one.place].is_free(one.envelope_id, one.attempt)

    def is_volatile_match(self, envelope_id: str) -> bool:
        """Return whether a call matched a record only without its volatile texts."""
        return envelope_id in self._matched

    @override
    async def explain_miss(self, envelope: LLMEnvelope, attempt: int) -> str:
        """Return the message of a miss, with the nearest unused record of the agent."""
        message = await super().explain_miss(envelope, attempt)
        if unknown := self._unknown_key(envelope):
            message = f"{message}. {unknown}"
        if envelope.envelope_id in self._slow:
            message = f"{message}. Its volatile texts were not searched: --volatile takes more than {STRUCK_WITHIN_S:g} s"
        own = self._asked_place(envelope)[:2]
        rows = [
            one for one in self._records if one.place[:2] == own and one.attempt == 1 and self._is_free(one)
        ]
        if rows and envelope.response_format is ResponseFormat.VERBATIM:
            # In a thread, because a recording may have thousands of requests.
            nearest = await asyncio.to_thread(self._nearest, request_values(envelope), envelope.step, rows)
            message = f"{message}. {nearest}"
        if len(self._messages) < MISSES_NAMED:
            self._messages[envelope.request_hash, envelope.occurrence, attempt] = message
        return message

    def _unknown_key(self, envelope: LLMEnvelope) -> str:
        """Return a sentence about an API key without a record, or no text if the call may have one."""
        types = self._types.get((envelope.tenant_id, envelope.agent_id), set())
        recorded = {key_name_of(one) for each in self._types.values() for one in each}
        known, name = {self._only} if self._only else recorded, key_name_of(envelope.agent_type)
        is_renamed = len(types) == 1 and types <= {agent_type_of(one) for one in known}
        if name in known or is_renamed or not known:
            return ""
        return f"The API key {name!r} has no record here. Keys with a record: {', '.join(sorted(known))}"

    def _nearest(self, asked: Sequence[tuple[str, str]], step: str, rows: Sequence[_Recorded]) -> str:
        """Return the sentence about the record with the fewest different paths."""
        numbers = {self._numbers.get(value, -1 - place) for place, value in enumerate(asked)}
        paths = {-1 - place: path for place, (path, _) in enumerate(asked)}

        def path_of(number: int) -> str:
            return paths[number] if number < 0 else self._values[number][0]

        best, best_paths, compared = rows[0], None, 0
        for one in rows:
            compared += len(one.values)
            if best_paths is not None and compared > MOST_COMPARED:
                break
            different = {*map(path_of, numbers.symmetric_difference(one.values))}
            if best_paths is None or len(different) < len(best_paths):
                best, best_paths = one, different
        recorded = dict(self._values[number] for number in best.values)
        named = [
            f"{self._shown_path(path)}: {self._sides(recorded.get(path), dict(asked).get(path))}"
            for path in sorted(best_paths or (), key=_natural)[:DIFFERENCES_NAMED]
        ]
        count = len(best_paths or ())
        if best.place[2] != step:
            count += 1
            named = [f"the name of its trace: recorded {best.place[2]!r}, asked {step!r}", *named][
                :DIFFERENCES_NAMED
            ]
        where = "1 place" if count == 1 else f"{count} places"
        return (
            f"The nearest unused record is {best.interaction_id}, number {best.number} of the recording. "
            f"It differs in {where}: {'; '.join(named)}"
        )

    def _shown_path(self, path: str) -> str:
        return self._redaction.text(path.removeprefix(_BODY))[: 2 * CHARACTERS_SHOWN]

    def _sides(self, recorded: str | None, asked: str | None) -> str:
        """Return both sides of a difference, from shortly before its first different character."""
        # Redacted before they are cut, because the start of a secret would stay otherwise.
        old, new = (_ABSENT if one is None else self._redaction.text(one) for one in (recorded, asked))
        same = next(
            (place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
            min(len(old), len(new)),
        )
        start = max(0, same - _BEFORE)
        before, after = (
            f"{'…' if start else ''}{one[start : start + CHARACTERS_SHOWN]}" for one in (old, new)
        )
        return f"recorded {before}, asked {after}"

    @property
    def use(self) -> Replayed:
        """The use of the recording until now."""
        unused = [
            one.interaction_id
            for one in self._records
            if (one.envelope_id, one.attempt) not in self._known[one.request_hash][one.place].used
        ]
        return Replayed(
            len(self.misses),
            len(self.unused),
            len(self._matched),
            tuple(self._messages.values()),
            tuple(unused[:UNUSED_NAMED]),
            {asking: one.request_hash for asking, one in self._matched.items()},
        )


def _place(envelope: LLMEnvelope, agent_type: str) -> _Place:
    return envelope.tenant_id, f"{envelope.agent_id} ({agent_type})", envelope.step


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a key that sorts item 9 before item 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]

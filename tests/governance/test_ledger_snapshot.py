"""A ledger that continues from a snapshot equals the one that is rebuilt from the whole log."""

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic_trading.governance import ledger_snapshot, rebuild
from agentic_trading.governance.events import (
    KINDS,
    AttemptAnsweredLate,
    AttemptDispatched,
    AttemptUnsent,
    LedgerCheckpointed,
    ReservationExpired,
)
from agentic_trading.governance.ledger import (
    LedgerCheckpoint,
    LedgerEntry,
    ReservationRequest,
    ReservationState,
)
from agentic_trading.governance.ledger_snapshot import SnapshotEntry, read_snapshot
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, Windows
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import CLOCK_STEP, REMEMBERED, LedgerRebuild
from agentic_trading.governance.rules import SIMULATED, ClockMode
from agentic_trading.llm.event import Event, EventBody
from agentic_trading.llm.interaction import LLMInteraction, reservation_id
from agentic_trading.llm.limits import LLMBudget
from agentic_trading.llm.store import Record
from tests.build import envelope, event, interaction

START = datetime(2026, 1, 30, 22, 30, tzinfo=UTC)
EVERY_COUNTER = [Limit(kind, ANY, window, calls=10**6) for kind in ScopeKind for window in Window]
NEW_YORK = ZoneInfo("America/New_York")
HASH = "a" * 64


@dataclass
class Call:
    """A call in a history: its key, its agent, and the dispatch that has no end yet."""

    key: str
    agent: str
    principal: str
    trace: str
    budget: LLMBudget
    attempt: int = 1
    sent: Event | None = None
    began: datetime = START
    is_doubtful: bool = False


@dataclass
class History:
    """Writes the records of a platform, in an order that it could write."""

    mode: ClockMode
    now: datetime = START
    records: list[Record] = field(default_factory=list)
    open: list[Call] = field(default_factory=list)
    count: int = 0

    def add(self, body: EventBody, at: datetime, cause: str = "") -> Event:
        wire = body.model_dump(mode="json")
        self.count += 1
        made = event(
            body.KIND, id=f"event-{self.count}", body=wire, time=self.now, as_of=at, causation_id=cause
        )
        self.records.append(made)
        return made

    def dispatch(self, call: Call, at: datetime, nusd: int) -> None:
        scopes = {
            ScopeKind.CALL: call.key,
            ScopeKind.TRACE: call.trace,
            ScopeKind.AGENT: call.agent,
            ScopeKind.WORKFLOW: "general",
            ScopeKind.TENANT: "default",
        }
        if call.principal:
            scopes[ScopeKind.PRINCIPAL] = call.principal
        body = AttemptDispatched(
            attempt=call.attempt, request_hash="", provider="p", model="m",
            reservation_id=reservation_id("default", call.key, call.attempt), scopes=scopes,
            reserved_nusd=nusd, reserved_tokens=7, window_at=at,
        )  # fmt: skip
        call.sent, call.began = self.add(body, at), self.now

    def end(self, call: Call, nusd: int, *, is_last: bool, is_doubtful: bool) -> None:
        sent = call.sent
        assert sent is not None
        at = sent.as_of
        asked = envelope(
            envelope_id=call.key if call.key.startswith("e-") else f"e-{call.key}", idempotency_key=call.key, agent_id=call.agent, trace_id=call.trace,
            as_of=at, budget=call.budget,
        )  # fmt: skip
        self.records.append(
            interaction(
                envelope=asked, attempt_number=call.attempt, dispatched_at=at, finished_at=at, timestamp=at,
                cost_nusd=nusd, stored_at=self.now, next_step="final" if is_last else "retry",
                in_doubt=is_doubtful,
            )
        )  # fmt: skip

    def pause(self, by: timedelta) -> None:
        """Let time pass, and so many other records that no call is recent."""
        self.now += by
        self.open = [call for call in self.open if self.now - call.began < timedelta(days=8)]
        self.records += [event(time=self.now)] * rebuild.RECENT


PAUSES = [
    timedelta(seconds=20),
    timedelta(minutes=7),
    timedelta(hours=1),
    timedelta(days=2),
    timedelta(days=10),
]


def history(chance: Any, mode: ClockMode = "live") -> History:
    """Return a history of a platform."""
    made = History(mode)
    for number in range(chance.randint(3, 25)):
        step = chance.choice(["call", "call", "end", "end", "late", "unsent", "expire", "pause", "pause"])
        nusd = chance.randint(0, 90)
        if step == "pause":
            made.pause(chance.choice(PAUSES))
        elif step == "call":
            _begin(chance, made, number, nusd)
        elif made.open:
            _go_on(chance, made, step, chance.choice(made.open), nusd)
    made.pause(timedelta())
    return made


def _begin(chance: Any, made: History, number: int, nusd: int) -> None:
    back = chance.choice([0, 1, 70, 3_000]) if made.mode in SIMULATED else 0
    call = Call(
        f"k{number}" if chance.random() < 0.5 else f"e-k{number}",
        chance.choice(["desk-1", "desk-2"]),
        chance.choice(["", "ann"]),
        chance.choice(["t1", "t2"]),
        chance.choice([LLMBudget(), LLMBudget(max_cost_nusd=900, max_trace_calls=50)]),
    )
    made.now += timedelta(seconds=chance.randint(0, 50))
    made.dispatch(call, made.now - timedelta(seconds=back), nusd)
    made.open.append(call)


def _go_on(chance: Any, made: History, step: str, call: Call, nusd: int) -> None:
    id_ = reservation_id("default", call.key, call.attempt)
    sent = call.sent
    assert sent is not None
    at = sent.as_of or made.now
    if call.is_doubtful != (step == "late"):
        return
    match step:
        case "late":
            late = AttemptAnsweredLate(attempt=call.attempt, reservation_id=id_, cost_nusd=nusd, tokens=1)
            made.add(late, at, sent.id)
            made.open.remove(call)
        case "unsent":
            made.add(AttemptUnsent(attempt=call.attempt, reservation_id=id_, why="no time left"), at, sent.id)
            _send_again_or_not(chance, made, call, nusd)
        case "expire":
            scopes = {ScopeKind.AGENT: call.agent}
            made.add(
                ReservationExpired(
                    reservation_id=id_, state=ReservationState.IN_DOUBT, nusd=nusd, tokens=7, window_at=at,
                    scopes=scopes,
                ),
                at,
            )  # fmt: skip
        case _:
            _end(chance, made, call, nusd)


def _send_again_or_not(chance: Any, made: History, call: Call, nusd: int) -> None:
    if chance.random() < 0.5:
        made.dispatch(call, made.now, nusd)
    else:
        made.open.remove(call)


def _end(chance: Any, made: History, call: Call, nusd: int) -> None:
    goes_on, call.is_doubtful = chance.random() < 0.5, chance.random() < 0.3
    made.end(call, nusd, is_last=not goes_on, is_doubtful=call.is_doubtful)
    if call.is_doubtful:
        return
    if goes_on:
        call.attempt += 1
        made.dispatch(call, made.now, nusd)
    else:
        made.open.remove(call)


def read(records: Sequence[Record], reading: LedgerRebuild) -> LedgerRebuild:
    """Return a rebuild that has read these records too."""
    for record in records:
        reading.read(record)
    return reading


def through_log(reading: LedgerRebuild, windows: Windows, line: int = 7) -> LedgerRebuild:
    """Return what a start reads of the snapshot of a rebuild."""
    wires = [
        body.as_event(event_id=str(n), trace_id="budget", tenant_id=reading.tenant, time=START).wire
        for n, body in enumerate(reading.snapshot(line, HASH, windows))
    ]
    return from_records(reading.tenant, [Event.from_wire(wire) for wire in wires])


def from_records(tenant: str, records: Sequence[Event]) -> LedgerRebuild:
    """Return the rebuild of the snapshot in these records."""
    bodies = [body for one in records if isinstance(body := KINDS.must(one), LedgerCheckpointed)]
    parts = [part for body in bodies if (part := read_snapshot(body.snapshot)) is not None]
    assert [part.part for part in parts] == list(range(1, parts[0].parts + 1))
    known = [LedgerCheckpoint(body.generation, body.mark, body.sequence) for body in bodies if body.mark]
    return LedgerRebuild.from_snapshot(tenant, parts, known[-1] if known else None)


async def counted(
    reading: LedgerRebuild, windows: Windows, traces: Collection[str]
) -> dict[tuple[Any, ...], tuple[int, int, int]]:
    """Return the counters of a ledger with these entries, in the windows that have not ended."""
    ledger, entries = MemoryLedger(EVERY_COUNTER, zone=windows.zone), reading.entries()
    await ledger.restore("default", entries)
    newest = max((one.request.at for one in entries if one.request.at is not None), default=START)
    since = newest - (REMEMBERED if reading.mode in SIMULATED else CLOCK_STEP)
    still_open = {
        (window, spans.id)
        for minute in _minutes(since, newest)
        for window, spans in windows.at(minute).items()
        if spans.over_by is None or spans.over_by > since
    }
    return {
        (one.scope, one.id, one.window, one.window_id): one.spent.units
        for one in await ledger.balances("default")
        if one.scope is not ScopeKind.CALL
        and (one.window, one.window_id) in still_open
        and any(one.spent.units)
        if one.scope is not ScopeKind.TRACE or one.id in traces
    }


def in_use(whole: LedgerRebuild) -> set[str]:
    """Return the traces that were never unused for a day."""
    uses: dict[str, list[datetime]] = {}
    newest = max((entry.request.at or START for entry in whole.entries()), default=START)
    for entry in whole.entries():
        uses.setdefault(entry.request.scope_ids.get(ScopeKind.TRACE, ""), []).append(
            entry.request.at or START
        )
    return {
        trace
        for trace, times in uses.items()
        if all(b - a <= REMEMBERED for a, b in pairwise([*sorted(times), newest]))
    }


def _minutes(since: datetime, until: datetime) -> Iterator[datetime]:
    while since < until:
        yield since
        since += timedelta(minutes=1)
    yield until


def known(reading: LedgerRebuild, now: datetime) -> tuple[Any, ...]:
    """Return what else a start takes from a rebuild."""
    lost = {id_: one for id_, one in reading.lost().items() if now - one.sent_at < timedelta(days=9)}
    return lost, reading.last_sent(), reading.checkpoint


@pytest.mark.parametrize("zone", [UTC, NEW_YORK], ids=str)
@given(chance=st.randoms(use_true_random=True))
@settings(max_examples=25, deadline=None)
def test_snapshot_and_rest_equal_whole_log(chance: Any, zone: Any) -> None:
    _check_equal(chance, Windows(zone), "live")


@given(chance=st.randoms(use_true_random=True))
@settings(max_examples=25, deadline=None)
def test_snapshot_of_backtest_keeps_windows_for_day(chance: Any) -> None:
    _check_equal(chance, Windows(UTC), "backtest")


def _check_equal(chance: Any, windows: Windows, mode: ClockMode) -> None:
    made = history(chance, mode)
    first = chance.randint(0, len(made.records))
    second = chance.randint(first, len(made.records))
    whole = read(made.records, LedgerRebuild("default", mode))

    reading = through_log(read(made.records[:first], LedgerRebuild("default", mode)), windows)
    reading = through_log(read(made.records[first:second], reading), windows)
    reading = read(made.records[second:], reading)

    traces = in_use(whole)
    assert asyncio.run(counted(reading, windows, traces)) == asyncio.run(counted(whole, windows, traces))
    assert known(reading, made.now) == known(whole, made.now)


def settled(key: str, *, minutes: int = 0, **more: Any) -> list[Record]:
    """Return the records of a call that was answered: its dispatch and its end."""
    made = History("live", START + timedelta(minutes=minutes))
    call = Call(
        key, more.pop("agent", "desk-1"), "", more.pop("trace", "t1"), more.pop("budget", LLMBudget())
    )
    made.dispatch(call, made.now, 50)
    made.end(call, 7, is_last=more.pop("is_last", True), is_doubtful=False)
    (sent, end) = made.records
    assert isinstance(sent, Event)
    return [sent.model_copy(update={"id": f"sent-{key}"}), end]


def continued(*records: Record) -> LedgerRebuild:
    """Return the rebuild of a snapshot after these records, none of which is recent."""
    noise = [event()] * rebuild.RECENT
    return through_log(read([*records, *noise], LedgerRebuild("default", "live")), Windows(UTC))


def ids(reading: LedgerRebuild) -> list[str]:
    """Return the reservations that are kept singly."""
    return [one.request.reservation_id for one in reading.entries() if one.request.attempt > 0]


def test_calls_of_same_minute_are_one_charge() -> None:
    reading = continued(*settled("e-a"), *settled("e-b"), *settled("e-c"))

    merged = [one for one in reading.entries() if one.request.attempt == 0]

    assert [(one.charged, one.request.scope_ids[ScopeKind.AGENT]) for one in merged] == [
        (Amount(14, 240, 2), "desk-1")
    ]
    assert ids(reading) == ["default:e-c:1"]


def test_call_with_own_key_is_known_for_day() -> None:
    own, later = (
        settled("own-key"),
        settled("e-later", minutes=1),
    )
    assert ids(continued(*own, *later)) == ["default:own-key:1", "default:e-later:1"]
    assert ids(continued(*own, *settled("e-later", minutes=1441))) == ["default:e-later:1"]


def test_attempts_of_unfinished_call_are_kept() -> None:
    first = settled("e-a", is_last=False)

    reading = continued(*first, *settled("e-b"))

    assert ids(reading) == ["default:e-a:1", "default:e-b:1"]


def test_late_answer_corrects_charge_of_snapshot() -> None:
    made = History("live")
    call = Call("e-a", "desk-1", "", "t1", LLMBudget())
    made.dispatch(call, made.now, 50)
    made.end(call, 50, is_last=True, is_doubtful=True)
    sent = call.sent
    assert sent is not None
    late = AttemptAnsweredLate(attempt=1, reservation_id="default:e-a:1", cost_nusd=9, tokens=1)

    reading = continued(*made.records, *settled("e-b"))
    before = reading.entries()[0]
    made.add(late, START, sent.id)
    reading.read(made.records[-1])
    after = reading.entries()[0]

    assert (before.state, before.charged.nusd) == (ReservationState.IN_DOUBT, 50)
    assert (after.state, after.charged.nusd) == (ReservationState.SETTLED, 9)


def test_trace_keeps_its_sum_for_day_after_its_last_use() -> None:
    used = continued(*settled("e-a"), *settled("e-b"), *settled("e-c", minutes=1440))
    unused = continued(*settled("e-a"), *settled("e-b"), *settled("e-c", minutes=1440 * 2 + 1, trace="t2"))

    assert [(one.request.scope_ids.get(ScopeKind.TRACE), one.charged.calls) for one in used.entries()] == [
        ("t1", 2), ("t1", 1),
    ]  # fmt: skip
    assert [one.request.scope_ids.get(ScopeKind.TRACE) for one in unused.entries()] == [None, "t2"]
    twice = through_log(read([event()] * rebuild.RECENT, used), Windows(UTC))
    assert twice.entries() == used.entries()


def test_dispatch_that_was_taken_back_is_forgotten() -> None:
    sent, _ = settled("e-a")
    assert isinstance(sent, Event)
    body = AttemptUnsent(attempt=1, reservation_id="default:e-a:1", why="no time left")
    unsent = event(body.KIND, body=body.model_dump(mode="json"), causation_id=sent.id, time=START)

    soon = continued(sent, unsent, *settled("e-b", minutes=60))
    later = continued(sent, unsent, *settled("e-b", minutes=60 * 24 * 10))

    assert [
        len(one.snapshot(7, HASH, Windows(UTC))[0].snapshot["reservations"]) for one in (soon, later)
    ] == [2, 1]


def test_expiry_after_long_list_of_expiries_counts_once() -> None:
    made = History("live")
    calls = [Call(f"e-{number}", "desk-1", "", "t1", LLMBudget()) for number in range(300)]
    for call in calls:
        made.dispatch(call, made.now, 50)
    made.now += timedelta(minutes=2)
    # The last one is answered while the expiries of all are recorded.
    made.end(calls[-1], 7, is_last=True, is_doubtful=False)
    for call in calls:
        id_ = reservation_id("default", call.key, 1)
        body = ReservationExpired(
            reservation_id=id_, state=ReservationState.IN_DOUBT, nusd=50, tokens=7, window_at=START
        )
        made.add(body, START)
    other = Call("e-z", "desk-1", "", "t1", LLMBudget())
    made.dispatch(other, made.now, 50)
    made.end(other, 7, is_last=True, is_doubtful=False)
    *before, expiry = [*made.records[:-3], *made.records[-2:], made.records[-3]]

    whole = read(made.records, LedgerRebuild("default", "live"))
    reading = read([expiry], through_log(read(before, LedgerRebuild("default", "live")), Windows(UTC)))

    assert sum(one.charged.nusd for one in reading.entries()) == 299 * 50 + 2 * 7
    assert sum(one.charged.nusd for one in whole.entries()) == 299 * 50 + 2 * 7


def test_slow_call_is_known_for_ten_minutes() -> None:
    made = History("live")
    slow = Call("e-slow", "desk-1", "", "t1", LLMBudget())
    made.dispatch(slow, made.now, 50)
    made.now += rebuild.SLOW
    made.end(slow, 7, is_last=True, is_doubtful=False)

    soon = continued(*made.records, *settled("e-b", minutes=10))
    later = continued(*made.records, *settled("e-b", minutes=11))

    assert ids(soon) == ["default:e-slow:1", "default:e-b:1"]
    assert ids(later) == ["default:e-b:1"]


def test_free_call_is_left_out() -> None:
    sent, end = settled("e-a")
    assert isinstance(end, LLMInteraction)
    free = end.result.model_copy(
        update={"cost_nusd": 0, "input_tokens": 0, "output_tokens": 0, "dispatched_at": START}
    )
    unconnected = LLMInteraction(envelope=end.envelope, result=free, stored_at=START)

    reading = continued(sent, unconnected, *settled("e-b"))

    assert [one.charged for one in reading.entries()] == [Amount(7, 120, 1)]


def test_large_snapshot_has_parts() -> None:
    reading = LedgerRebuild("default", "live")
    for number in range(1010):
        body = AttemptDispatched(
            attempt=1, request_hash="", provider="p", model="m", reservation_id=f"default:k{number}:1",
            scopes={ScopeKind.CALL: f"k{number}"}, reserved_nusd=1, window_at=START,
        )  # fmt: skip
        reading.read(event(body.KIND, body=body.model_dump(mode="json"), time=START))
    for number in range(10):
        read(settled(f"e-{number}", agent=f"desk-{number}"), reading)
    read([event()] * rebuild.RECENT, reading)

    again = through_log(reading, Windows(UTC))

    parts = [read_snapshot(body.snapshot) for body in again.snapshot(9, HASH, Windows(UTC))]
    assert [(part.part, part.parts) for part in parts if part is not None] == [
        (number, 5) for number in range(1, 6)
    ]
    assert again.entries() == reading.entries()
    assert reading.is_long is False


def test_part_is_below_limit_of_bus() -> None:
    reading = LedgerRebuild("default", "live")
    budget = LLMBudget(max_cost_nusd=900, max_trace_calls=50)
    for number in range(ledger_snapshot.MOST_IN_PART + 1):
        read(settled(f"{number:0200d}", budget=budget), reading)

    wires = [
        body.as_event(event_id="e", trace_id="t", tenant_id="default", time=START).wire
        for body in reading.snapshot(7, HASH, Windows(UTC))
    ]

    assert len(wires) == 2
    assert max(map(len, wires)) < 500_000


def test_long_rebuild_asks_to_be_compacted() -> None:
    reading = LedgerRebuild("default", "live")
    for number in range(2100):
        reading.read(settled(f"e-{number}")[1])

    assert reading.is_long
    read([event()] * rebuild.RECENT, reading).compact(Windows(UTC))
    assert not reading.is_long


def test_snapshot_keeps_progress_of_ledger() -> None:
    reading = LedgerRebuild("default", "live")
    reading.read(rebuild.checkpoint_event("default", LedgerCheckpoint(3, "mark", 40), START))

    assert through_log(reading, Windows(UTC)).checkpoint == LedgerCheckpoint(3, "mark", 40)


def test_snapshot_of_memory_ledger_is_ignored_as_progress() -> None:
    (body,) = LedgerRebuild("default", "live").snapshot(7, HASH, Windows(UTC))
    reading = LedgerRebuild("default", "live")

    reading.read(body.as_event(event_id="e", trace_id="t", tenant_id="default", time=START))

    assert reading.checkpoint is None


def test_fifty_counters_take_few_bytes() -> None:
    records = [
        record
        for agent in range(10)
        for place, minutes in enumerate([0, 3000, 4300, 4380, 4400])
        for record in settled(f"e-{agent}-{place}", agent=f"desk-{agent}", minutes=minutes)
    ]
    reading = read(
        [*sorted(records, key=_time_of), *[event()] * rebuild.RECENT], LedgerRebuild("default", "live")
    )

    bodies = reading.snapshot(7, HASH, Windows(UTC))

    wires = [one.as_event(event_id="e", trace_id="t", tenant_id="default", time=START).wire for one in bodies]
    assert sum(map(len, wires)) < 6500


def _time_of(record: Record) -> datetime:
    return record.time if isinstance(record, Event) else record.stored_at


@pytest.mark.parametrize("fields", [{}, {"version": 2}, {"version": 1, "line": "first"}], ids=str)
def test_unreadable_snapshot_is_none(fields: dict[str, Any]) -> None:
    assert read_snapshot(fields) is None


def test_entry_without_time_is_refused() -> None:
    request = ReservationRequest("k", 1, {ScopeKind.TENANT: "default"}, Amount(1, 1))

    with pytest.raises(ValueError, match="default:k:1 has no time"):
        SnapshotEntry.of(LedgerEntry(request, ReservationState.SETTLED, Amount(1, 1)))

"""Rebuild a ledger from logs, joined with the charges that the ledger still has."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final, assert_never

from agentic_trading.governance import events as ledger_events
from agentic_trading.governance import ledger as ledger_api
from agentic_trading.governance import ledger_snapshot as snapshot_types
from agentic_trading.governance.admission import reservation_id_of, reservation_request
from agentic_trading.governance.controls_document import AppliedCommand
from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.limits import COUNTED_BY_CALL, ScopeKind, Windows
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.governance.rules import SIMULATED, ClockMode
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record

_KNOWN_FOR = timedelta(days=7)
"""A server keeps each ended call longer than this."""

REMEMBERED: Final = timedelta(days=1)
"""How long a ledger in memory remembers an ended call."""

CLOCK_STEP: Final = timedelta(minutes=5)
"""A window counts in a snapshot until this long after its end, because clocks may be set back."""

RECENT: Final = 256
"""A reservation is kept singly until so many records were read after its last one."""

SLOW: Final = timedelta(seconds=20)
"""A lease is at least 30 seconds, so that a call that ended sooner than this is not recorded as expired."""

EXPIRIES: Final = timedelta(minutes=10)
"""A slow call is kept singly for so long, because its lease may be recorded as expired after its end.

Many leases that run out at once are recorded one by one.
"""


def checkpoint_event(tenant: str, checkpoint: ledger_api.LedgerCheckpoint, now: datetime) -> Event:
    """Return the record of how far a tenant's ledger has progressed."""
    epoch, epoch_id, sequence = checkpoint.epoch, checkpoint.epoch_id, checkpoint.sequence
    return ledger_events.LedgerCheckpointed(generation=epoch, mark=epoch_id, sequence=sequence).as_event(
        event_id=derived_id("budget.position", tenant, epoch, epoch_id, sequence),
        trace_id="budget",
        tenant_id=tenant,
        time=now,
    )


def rollback_error(
    tenant: str, known: ledger_api.LedgerCheckpoint, found: ledger_api.LedgerCheckpoint
) -> LedgerRolledBackError | None:
    """Return an error if a ledger is behind its `known` checkpoint, otherwise None."""
    return LedgerRolledBackError(tenant, str(known), str(found)) if found.is_behind(known) else None


async def require_not_behind(books: "LedgerRebuild", ledger: ledger_api.Ledger, now: datetime) -> None:
    """Raise `LedgerRolledBackError` if a ledger has lost steps that a log has on record.

    Always calls the ledger. It must have reached the recorded checkpoint, and must have the last call that
    the log has sent. The second check is left out if time is simulated. If the ledger has lost steps, it is
    closed for all processes.
    """
    known = books.checkpoint
    if known is not None:
        await ledger.require_at_least(books.tenant, known)
    found = await ledger.checkpoint(books.tenant)
    last = books.last_sent()
    if (
        # A reservation is acknowledged before its dispatch is recorded, so that the ledger must have the last
        # sent call. In simulated time its age is unknown, and an old call may have been forgotten.
        last is not None
        and books.mode not in SIMULATED
        and now - _KNOWN_FOR < last.sent_at <= now
        and await ledger.state_of(last.reservation_id) is None
    ):
        known = replace(found, sequence=found.sequence + 1)  # the step by which it was reserved, at least
        await ledger.require_at_least(books.tenant, known)
        found = await ledger.checkpoint(books.tenant)
    if known is not None and (gone := rollback_error(books.tenant, known, found)) is not None:
        raise gone


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """A dispatched attempt without an end on record.

    It is charged in full, as often as it may have been sent.
    """

    reservation_id: str
    charged: Amount
    sent_at: datetime


_COMPACT_AFTER: Final = 2000

_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Dispatch:
    entry: ledger_api.LedgerEntry
    sent_at: datetime


@dataclass(slots=True)
class _Reservation:
    """The records of one reservation: dispatches by event id, those taken back, and ends by interaction id.

    `late` are answers to attempts that were recorded in doubt, by event id. `is_finished` if its call has a
    last attempt. `time` is that of its last record, and `number` counts the records that were read up to it.
    """

    dispatches: dict[str, _Dispatch] = field(default_factory=dict)
    taken_back: set[str] = field(default_factory=set)
    ends: dict[str, ledger_api.LedgerEntry] = field(default_factory=dict)
    late: dict[str, Amount] = field(default_factory=dict)
    expired: ledger_api.LedgerEntry | None = None
    has_own_key: bool = False
    is_finished: bool = False
    time: datetime = _LONG_AGO
    number: int = 0

    @property
    def is_settled(self) -> bool:
        """Whether every attempt that was sent has an end that is not in doubt."""
        is_sure = all(end.state is not ledger_api.ReservationState.IN_DOUBT for end in self.ends.values())
        return bool(self.ends) and is_sure and not self.unanswered()

    def unanswered(self) -> list[_Dispatch]:
        """Return the dispatches without an end.

        If only some have one, the cheapest count as ended.
        """
        if not self.taken_back and len(self.dispatches) <= len(self.ends):
            return []
        sent = [one for id_, one in self.dispatches.items() if id_ not in self.taken_back]
        sent.sort(key=lambda one: (one.entry.charged.units, one.sent_at))
        # A dispatch that was taken back may have an end, which must not count as the end of another dispatch.
        # The dearest remain, because it is unknown which of them were billed.
        unsent = sum(end.charged.calls == 0 for end in self.ends.values())
        return sent[len(self.ends) - min(unsent, len(self.taken_back)) :]

    def attempts(self) -> list[ledger_api.LedgerEntry]:
        """Return the charge of each attempt that was sent.

        The dearer of two records is used.
        """
        unanswered = [one.entry for one in self.unanswered()]
        parts = self._corrected([*self.ends.values(), *unanswered])
        if self.expired is None or self.ends or (parts and self.late):
            return parts
        is_dearer = self.expired.charged.units > _sum(one.charged for one in parts).units if parts else True
        return [self.expired] if is_dearer else parts

    def entry(self) -> ledger_api.LedgerEntry | None:
        """Return the total charge, or None."""
        parts = self.attempts()
        if not parts or parts == [self.expired]:
            return self.expired if parts else None
        first = next(iter(self.ends.values()), parts[0])
        sent = [one for id_, one in self.dispatches.items() if id_ not in self.taken_back]
        sent.sort(key=lambda one: one.sent_at)
        moments = [at for one in sent if (at := one.entry.request.at) is not None]
        counted_in = sent[0].entry.request.scope_ids if sent else {}  # who sent it stands in no interaction
        total = _sum(one.charged for one in parts)
        request = replace(
            first.request,
            scope_ids={**first.request.scope_ids, **counted_in},
            at=min(moments, default=first.request.at),
            amount=_dearer(_sum(one.request.amount for one in parts), total),
        )
        is_doubtful = any(one.state is ledger_api.ReservationState.IN_DOUBT for one in parts)
        return replace(
            first,
            request=request,
            charged=total,
            state=ledger_api.ReservationState.IN_DOUBT
            if is_doubtful
            else ledger_api.ReservationState.SETTLED,
        )

    def _corrected(self, parts: list[ledger_api.LedgerEntry]) -> list[ledger_api.LedgerEntry]:
        """Return `parts` with late answers in place of charges in doubt, the cheapest first."""
        if len(parts) == 1 and not self.late:
            return parts
        in_doubt = [one for one in parts if one.state is ledger_api.ReservationState.IN_DOUBT]
        in_doubt.sort(key=lambda one: one.charged.units)
        sure = [one for one in parts if one.state is not ledger_api.ReservationState.IN_DOUBT]
        late = sorted(self.late.values(), key=lambda amount: amount.units)[: len(in_doubt)]
        known = [
            replace(one, state=ledger_api.ReservationState.SETTLED, charged=charged)
            for one, charged in zip(in_doubt, late, strict=False)
        ]
        return [*sure, *known, *in_doubt[len(late) :]]


@dataclass(slots=True)
class LedgerRebuild:
    """Reads the records of logs.

    `entries` is then the expected content of a tenant's ledger. Records are joined by reservation. A dispatch
    that was not taken back and has no end is charged in full, in doubt, whatever other records its
    reservation has. A reservation without an end that was charged after its lease is in doubt too. The order
    of records and logs does not matter, and reading one again has no effect.

    A long log is read in steps: `compact` merges the charges of ended calls, `snapshot` returns the rest for
    the log, and `from_snapshot` continues there. For this, the records of one log must be read in its order.

    Attributes:
        tenant: The tenant.
        mode: The mode of the log. In simulated modes the windows follow the market's time, otherwise the time
            of sending.
        checkpoint: The farthest checkpoint on record.
        is_changed: Whether a record about money was read since the last `snapshot`.

    """

    tenant: str
    mode: ClockMode
    checkpoint: ledger_api.LedgerCheckpoint | None = None
    is_changed: bool = False
    _reservations: dict[str, _Reservation] = field(default_factory=dict)
    _charges: list[ledger_api.LedgerEntry] = field(default_factory=list)
    _finished: set[str] = field(default_factory=set)
    _number: int = 0
    _kept: int = 0
    _time: datetime = _LONG_AGO

    @classmethod
    def from_snapshot(
        cls,
        tenant: str,
        parts: Iterable[snapshot_types.LedgerSnapshot],
        checkpoint: ledger_api.LedgerCheckpoint | None = None,
    ) -> "LedgerRebuild":
        """Return the state of a snapshot, and of a checkpoint. All parts are needed, in order.

        Records after its line continue it.
        """
        found = cls(tenant, "live", checkpoint=checkpoint)
        for part in parts:
            found.mode = part.mode
            found._charges += [_charge_entry(tenant, one) for one in part.charges]
            found._reservations.update(
                (one.reservation_id, _reservation_from(one)) for one in part.reservations
            )
        found._time = max((one.time for one in found._reservations.values()), default=_LONG_AGO)
        return found

    def snapshot(self, line: int, head: str, windows: Windows) -> list[ledger_events.LedgerCheckpointed]:
        """Compact, and return the state as records: all lines up to `line` with the hash `head` were read."""
        self.compact(windows)
        self.is_changed = False
        known = self.checkpoint or ledger_api.LedgerCheckpoint(0, "", 0)
        parts = snapshot_types.split_snapshot(
            snapshot_types.SnapshotPlace(line, head, self.mode, str(windows.zone)),
            [_snapshot_charge(one) for one in self._charges],
            [_snapshot_reservation(id_, one) for id_, one in self._reservations.items()],
        )
        return [
            ledger_events.LedgerCheckpointed(
                generation=known.epoch,
                mark=known.epoch_id,
                sequence=known.sequence,
                snapshot=part.model_dump(mode="json", exclude_defaults=True),
            )
            for part in parts
        ]

    @property
    def is_long(self) -> bool:
        """Whether so many reservations were read since the last `compact` that it is time for the next."""
        return len(self._reservations) > 2 * self._kept + _COMPACT_AFTER

    def compact(self, windows: Windows) -> None:
        """Merge the charges of calls that are equal in scopes and windows and that no later record changes.

        Windows that have ended are no longer told apart, nor are traces that were unused for a day. Kept singly
        are reservations that are not settled, for nine days, and for a day those of unfinished calls and those
        with a key of the caller.
        """
        entries = {id_: known.entry() for id_, known in self._reservations.items()}
        charged = [*self._charges, *(entry for entry in entries.values() if entry is not None)]
        newest = max((entry.request.at or _LONG_AGO for entry in charged), default=_LONG_AGO)
        traces = _remembered_traces(charged, newest)
        merge = _ChargeMerge(windows, newest, self.mode, traces)
        for charge in self._charges:
            merge.add(charge)
        last, kept = self.last_sent(), {}
        for id_, known in self._reservations.items():
            known.is_finished |= ledger_api.parts_of(id_)[1] in self._finished
            entry = entries[id_]
            if (last is not None and id_ == last.reservation_id) or self._is_single(known, entry, newest):
                kept[id_] = known
            elif entry is not None:
                merge.add(entry)
        self._reservations, self._charges = kept, merge.entries(self.tenant)
        self._kept = len(kept)
        self._finished.intersection_update(ledger_api.parts_of(id_)[1] for id_ in kept)

    def _is_single(self, known: _Reservation, entry: ledger_api.LedgerEntry | None, newest: datetime) -> bool:
        """Whether a reservation may still change, or must be known by its id."""
        if self._number - known.number < RECENT:
            return True
        if not known.is_settled:
            # In simulated time, the age of a call is unknown.
            return self.mode in SIMULATED or self._time - known.time < ledger_api.CALL_KEEP
        sent_at = min((one.sent_at for one in known.dispatches.values()), default=known.time)
        if known.time - sent_at >= SLOW and self._time - known.time <= EXPIRIES:
            return True
        at = None if entry is None else entry.request.at
        is_remembered = at is not None and newest - at <= REMEMBERED
        return is_remembered and (known.has_own_key or not known.is_finished)

    def read(self, record: Record) -> None:
        """Read one record. Records of other tenants are ignored.

        Raises:
            UnknownKindError: If a newer release has recorded an unknown kind about money.
            UnreadableBodyError: If a record's body is invalid.

        """
        self._number += 1
        if isinstance(record, LLMInteraction):
            self._read_interaction(record)
        else:
            self._read_event(record)

    def entries(self) -> list[ledger_api.LedgerEntry]:
        """Return the charges: merged ones, then one entry per reservation in the order of their first record."""
        found = [known.entry() for known in self._reservations.values()]
        return [*self._charges, *(entry for entry in found if entry is not None)]

    def attempts(self) -> dict[str, list[ledger_api.LedgerEntry]]:
        """Return the charge of each sent attempt by reservation, without merged charges.

        An entry of `entries` is their sum.
        """
        found = {id_: known.attempts() for id_, known in self._reservations.items()}
        return {id_: parts for id_, parts in found.items() if parts}

    def lost(self) -> dict[str, LostAttempt]:
        """Return the sent attempts without an end, by reservation."""
        found = {id_: known.unanswered() for id_, known in self._reservations.items() if not known.ends}
        return {
            id_: LostAttempt(id_, _sum(one.entry.charged for one in sent), sent[0].sent_at)
            for id_, sent in found.items()
            if sent
        }

    def last_sent(self) -> LostAttempt | None:
        """Return the last dispatched attempt that was not taken back, with or without an end."""
        for id_, known in reversed(self._reservations.items()):
            sent = [one for event_id, one in known.dispatches.items() if event_id not in known.taken_back]
            if sent:
                return LostAttempt(id_, sent[-1].entry.charged, sent[-1].sent_at)
        return None

    def _read_event(self, event: Event) -> None:
        body = ledger_events.KINDS.must(event)
        match body:
            case ledger_events.LedgerCheckpointed():
                self._read_checkpoint(event, body)
            case (
                ledger_events.AttemptDispatched()
                | ledger_events.AttemptUnsent()
                | ledger_events.AttemptAnsweredLate()
                | ledger_events.ReservationExpired()
            ):
                # By the tenant of the reservation, because the record's own tenant may differ
                if ledger_api.tenant_of(body.reservation_id) == self.tenant:
                    self._read_step(event, body)
            case (
                ledger_events.BudgetThresholdReached()
                | ledger_events.BudgetExhausted()
                | ledger_events.BudgetExhaustionForecast()
                | AppliedCommand()
            ):
                pass  # about limits and warnings, without a charge
            case None:
                pass
            case _:
                assert_never(body)

    def _read_step(
        self,
        event: Event,
        body: ledger_events.AttemptDispatched
        | ledger_events.AttemptUnsent
        | ledger_events.AttemptAnsweredLate
        | ledger_events.ReservationExpired,
    ) -> None:
        known = self._reservation(body.reservation_id, event.time)
        match body:
            case ledger_events.AttemptDispatched():
                known.dispatches[event.id] = _Dispatch(self._sent_entry(event, body), event.time)
            case ledger_events.AttemptUnsent():
                known.taken_back.add(event.causation_id)
            case ledger_events.AttemptAnsweredLate():
                known.late[event.id] = Amount(body.cost_nusd, body.tokens)
            case ledger_events.ReservationExpired():
                self._read_expiry(known, event, body)
            case _:
                assert_never(body)

    def _read_expiry(self, known: _Reservation, event: Event, body: ledger_events.ReservationExpired) -> None:
        if body.state is not ledger_api.ReservationState.IN_DOUBT:
            return
        expired = self._expired_entry(event, body)
        if known.expired is None or expired.charged.units > known.expired.charged.units:
            known.expired = expired

    def _read_interaction(self, record: LLMInteraction) -> None:
        envelope, result = record.envelope, record.result
        if envelope.tenant_id != self.tenant or result.served_from == "recorded":  # an unknown word is paid
            return
        if result.next_step in {"", "final"}:
            self._finished.add(envelope.idempotency_key)
        if result.dispatched_at is None and not result.cost_nusd:
            return
        known = self._reservation(
            result.reservation_id or reservation_id_of(envelope, result.attempt_number), record.stored_at
        )
        known.has_own_key |= envelope.idempotency_key != envelope.envelope_id
        sent_at = result.dispatched_at or result.timestamp
        at = envelope.as_of if self.mode in SIMULATED and envelope.as_of is not None else sent_at
        used = result.charged_tokens
        charged = Amount(result.cost_nusd, used, int(result.counts_as_sent))
        reserved = Amount(max(result.reserved_nusd, result.cost_nusd), max(result.reserved_tokens, used))
        entry = ledger_api.LedgerEntry(
            reservation_request(envelope, result.attempt_number, reserved, at),
            ledger_api.ReservationState.IN_DOUBT if result.in_doubt else ledger_api.ReservationState.SETTLED,
            charged,
        )
        before = known.ends.get(record.interaction_id)
        if before is None or entry.charged.units > before.charged.units:
            known.ends[record.interaction_id] = entry

    def _reservation(self, id_: str, time: datetime) -> _Reservation:
        """Return a reservation for another record of it."""
        known = self._reservations.setdefault(id_, _Reservation())
        known.time, known.number = max(known.time, time), self._number
        self._time = max(self._time, time)
        self.is_changed = True
        return known

    def _sent_entry(self, event: Event, body: ledger_events.AttemptDispatched) -> ledger_api.LedgerEntry:
        """Return the entry of a call that is only recorded as dispatched."""
        amount = Amount(body.reserved_nusd, body.reserved_tokens, body.reserved_calls)
        return self._in_doubt(body.reservation_id, body.scopes, amount, body.window_at or self._at(event))

    def _expired_entry(self, event: Event, body: ledger_events.ReservationExpired) -> ledger_api.LedgerEntry:
        """Return the entry of a call that is only recorded as charged after its lease."""
        amount = Amount(body.nusd, body.tokens, body.calls)
        return self._in_doubt(body.reservation_id, body.scopes, amount, body.window_at or self._at(event))

    def _in_doubt(
        self, id_: str, scopes: Mapping[ScopeKind, str], amount: Amount, at: datetime
    ) -> ledger_api.LedgerEntry:
        tenant, key, attempt = ledger_api.parts_of(id_)
        known = {**scopes, ScopeKind.CALL: key, ScopeKind.TENANT: tenant}
        request = ledger_api.ReservationRequest(key, attempt, known, amount, at, (COUNTED_BY_CALL,))
        return ledger_api.LedgerEntry(request, ledger_api.ReservationState.IN_DOUBT, amount)

    def _at(self, event: Event) -> datetime:
        return event.as_of if self.mode in SIMULATED and event.as_of is not None else event.time

    def _read_checkpoint(self, event: Event, body: ledger_events.LedgerCheckpointed) -> None:
        if event.tenant_id != self.tenant or not body.mark:  # a ledger in memory ends with its process
            return
        found = ledger_api.LedgerCheckpoint(body.generation, body.mark, body.sequence)
        known = self.checkpoint
        if known is None or _place_of(found) > _place_of(known):
            self.checkpoint = found


_NOT_IN_SUMS: Final = frozenset({ScopeKind.CALL, ScopeKind.TENANT})


@dataclass(slots=True)
class _ChargeMerge:
    """Adds up charges with equal scopes and equal windows that have not ended."""

    windows: Windows
    newest: datetime
    mode: ClockMode
    traces: Collection[str]
    _sums: dict[tuple[object, ...], tuple[dict[ScopeKind, str], datetime, Amount]] = field(
        default_factory=dict
    )

    def add(self, entry: ledger_api.LedgerEntry) -> None:
        """Add a charge, for its trace only if that is one of `traces`."""
        if not any(entry.charged.units):
            return
        at = entry.request.at or self.newest
        scopes = {
            kind: id_
            for kind, id_ in entry.request.scope_ids.items()
            if kind not in _NOT_IN_SUMS and (kind is not ScopeKind.TRACE or id_ in self.traces)
        }
        key = (*sorted(scopes.items()), *self._open_windows(at))
        _, latest, charged = self._sums.get(key, (scopes, at, NOTHING))
        self._sums[key] = (scopes, max(latest, at), _sum([charged, entry.charged]))

    def entries(self, tenant: str) -> list[ledger_api.LedgerEntry]:
        """Return the sums."""
        return [
            _charge_entry(tenant, snapshot_types.SnapshotCharge(scopes, at, *charged.units))
            for scopes, at, charged in self._sums.values()
        ]

    def _open_windows(self, at: datetime) -> list[str]:
        """Return the ids of the windows of a time that may still be counted in."""
        # A simulated market may go back as far as a ledger in memory allows.
        until = self.newest - (REMEMBERED if self.mode in SIMULATED else CLOCK_STEP)
        return [
            window.id
            for window in self.windows.at(at).values()
            if window.over_by is not None and window.over_by > until
        ]


def _remembered_traces(charged: Iterable[ledger_api.LedgerEntry], newest: datetime) -> frozenset[str]:
    """Return the traces that were used within a day. A limit on them may come with any later call."""
    return frozenset(
        entry.request.scope_ids.get(ScopeKind.TRACE, "")
        for entry in charged
        if newest - (entry.request.at or newest) <= REMEMBERED
    )


def _charge_entry(tenant: str, charge: snapshot_types.SnapshotCharge) -> ledger_api.LedgerEntry:
    """Return a merged charge as an entry, under an id that no reservation has."""
    # No attempt has the number 0. Charges with the same scopes and time have the same windows, so they are one.
    scopes, at, *units = charge
    id_ = derived_id("ledger.charge", at.isoformat(), *(f"{kind}={scopes[kind]}" for kind in sorted(scopes)))
    amount = Amount(*units)
    request = ledger_api.ReservationRequest(id_, 0, {**scopes, ScopeKind.TENANT: tenant}, amount, at)
    return ledger_api.LedgerEntry(request, ledger_api.ReservationState.SETTLED, amount)


def _snapshot_charge(entry: ledger_api.LedgerEntry) -> snapshot_types.SnapshotCharge:
    scopes = {kind: id_ for kind, id_ in entry.request.scope_ids.items() if kind not in _NOT_IN_SUMS}
    return snapshot_types.SnapshotCharge(scopes, entry.request.at or _LONG_AGO, *entry.charged.units)


def _snapshot_reservation(id_: str, known: _Reservation) -> snapshot_types.SnapshotReservation:
    entry = snapshot_types.SnapshotEntry.of
    return snapshot_types.SnapshotReservation(
        reservation_id=id_,
        dispatches={
            event_id: snapshot_types.SnapshotDispatch(entry=entry(one.entry), sent_at=one.sent_at)
            for event_id, one in known.dispatches.items()
        },
        unsent=tuple(sorted(known.taken_back)),
        ends={interaction_id: entry(one) for interaction_id, one in known.ends.items()},
        late={event_id: (amount.nusd, amount.tokens) for event_id, amount in known.late.items()},
        expired=None if known.expired is None else entry(known.expired),
        has_own_key=known.has_own_key,
        is_finished=known.is_finished,
        time=known.time,
    )


def _reservation_from(one: snapshot_types.SnapshotReservation) -> _Reservation:
    parts = ledger_api.parts_of(one.reservation_id)
    return _Reservation(
        dispatches={
            id_: _Dispatch(sent.entry.entry(*parts), sent.sent_at) for id_, sent in one.dispatches.items()
        },
        taken_back=set(one.unsent),
        ends={id_: end.entry(*parts) for id_, end in one.ends.items()},
        late={id_: Amount(*amount) for id_, amount in one.late.items()},
        expired=None if one.expired is None else one.expired.entry(*parts),
        has_own_key=one.has_own_key,
        is_finished=one.is_finished,
        time=one.time,
    )


@dataclass(frozen=True, slots=True)
class KeptCharge:
    """A charge of a ledger that exceeds the logs.

    `logged` is their charge, which may be zero.
    """

    reservation_id: str
    charged: Amount
    logged: Amount


def join(
    logged: Iterable[ledger_api.LedgerEntry], charged: Iterable[ledger_api.LedgerEntry]
) -> tuple[list[ledger_api.LedgerEntry], list[KeptCharge]]:
    """Return the joined content of a ledger, and the charges that the logs do not explain.

    Each reservation counts once, at the dearer charge, so that no sum gets lower. If the ledger has it, the
    ledger's scopes and windows are used. A dispatched call of a ledger that has gone back is in doubt, unless
    a log has its end.

    Args:
        logged: The entries of the logs.
        charged: The entries of the ledger.

    """
    joined = {entry.request.reservation_id: entry for entry in logged}
    kept = []
    for known in charged:
        id_ = known.request.reservation_id
        entry = joined.get(id_)
        if entry is not None and _explains(entry, known):
            joined[id_] = replace(entry, request=_counted_as(entry.request, known.request))
            continue
        joined[id_] = _dearer_entry(entry, known)
        kept.append(KeptCharge(id_, known.charged, NOTHING if entry is None else entry.charged))
    return list(joined.values()), kept


def _explains(entry: ledger_api.LedgerEntry, known: ledger_api.LedgerEntry) -> bool:
    """Whether a log contains all that the ledger has charged for a call, or the end of a call in flight."""
    if (
        known.state is ledger_api.ReservationState.DISPATCHED
        and entry.state is ledger_api.ReservationState.SETTLED
    ):
        return True
    return _dearer(entry.charged, known.charged) == entry.charged


def _dearer_entry(
    entry: ledger_api.LedgerEntry | None, known: ledger_api.LedgerEntry
) -> ledger_api.LedgerEntry:
    """Return the entry of a call whose charge in the ledger exceeds the logs.

    It is settled if one side explains it all.
    """
    charged = known.charged if entry is None else _dearer(known.charged, entry.charged)
    is_settled = known.state is ledger_api.ReservationState.SETTLED and charged == known.charged
    request = known.request if entry is None else _counted_as(entry.request, known.request)
    return ledger_api.LedgerEntry(
        request,
        ledger_api.ReservationState.SETTLED if is_settled else ledger_api.ReservationState.IN_DOUBT,
        charged,
    )


def _counted_as(
    logged: ledger_api.ReservationRequest, known: ledger_api.ReservationRequest
) -> ledger_api.ReservationRequest:
    """Return the log's request with the windows and scopes of the ledger."""
    # Otherwise the amount would be free again in the window in which the ledger has counted it.
    return replace(logged, at=known.at, scope_ids={**logged.scope_ids, **known.scope_ids})


def _place_of(checkpoint: ledger_api.LedgerCheckpoint) -> tuple[int, int, str]:
    return checkpoint.epoch, checkpoint.sequence, checkpoint.epoch_id


def _sum(amounts: Iterable[Amount]) -> Amount:
    first, *more = amounts
    return (
        Amount(*map(sum, zip(first.units, *(amount.units for amount in more), strict=True)))
        if more
        else first
    )


def _dearer(one: Amount, other: Amount) -> Amount:
    return Amount(*map(max, one.units, other.units))

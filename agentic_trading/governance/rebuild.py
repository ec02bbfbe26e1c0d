"""Rebuild a ledger from logs, joined with the charges that the ledger still has."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import assert_never

from agentic_trading.governance import events as ledger_events
from agentic_trading.governance import ledger as ledger_api
from agentic_trading.governance.admission import reservation_id_of, reservation_request
from agentic_trading.governance.controls_document import AppliedCommand
from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.limits import COUNTED_BY_CALL, ScopeKind
from agentic_trading.governance.prices import NOTHING, Amount
from agentic_trading.governance.rules import SIMULATED, ClockMode
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record

_KNOWN_FOR = timedelta(days=7)
"""A server keeps each ended call longer than this."""


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


@dataclass(frozen=True, slots=True)
class _Dispatch:
    entry: ledger_api.LedgerEntry
    sent_at: datetime


@dataclass(slots=True)
class _Reservation:
    """The records of one reservation: dispatches by event id, those taken back, and ends by interaction id.

    `late` are answers to attempts that were recorded in doubt, by event id.
    """

    dispatches: dict[str, _Dispatch] = field(default_factory=dict)
    taken_back: set[str] = field(default_factory=set)
    ends: dict[str, ledger_api.LedgerEntry] = field(default_factory=dict)
    late: dict[str, Amount] = field(default_factory=dict)
    expired: ledger_api.LedgerEntry | None = None

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

    Attributes:
        tenant: The tenant.
        mode: The mode of the log. In simulated modes the windows follow the market's time, otherwise the time
            of sending.
        checkpoint: The farthest checkpoint on record.

    """

    tenant: str
    mode: ClockMode
    checkpoint: ledger_api.LedgerCheckpoint | None = None
    _reservations: dict[str, _Reservation] = field(default_factory=dict)

    def read(self, record: Record) -> None:
        """Read one record. Records of other tenants are ignored.

        Raises:
            UnknownKindError: If a newer release has recorded an unknown kind about money.
            UnreadableBodyError: If a record's body is invalid.

        """
        if isinstance(record, LLMInteraction):
            self._read_interaction(record)
        else:
            self._read_event(record)

    def entries(self) -> list[ledger_api.LedgerEntry]:
        """Return the charges, one entry per reservation, in the order of their first record."""
        found = [known.entry() for known in self._reservations.values()]
        return [entry for entry in found if entry is not None]

    def attempts(self) -> dict[str, list[ledger_api.LedgerEntry]]:
        """Return the charge of each sent attempt by reservation.

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
        known = self._reservations.setdefault(body.reservation_id, _Reservation())
        match body:
            case ledger_events.AttemptDispatched():
                known.dispatches[event.id] = _Dispatch(self._sent_entry(event, body), event.time)
            case ledger_events.AttemptUnsent():
                known.taken_back.add(event.causation_id)
            case ledger_events.AttemptAnsweredLate():
                known.late[event.id] = Amount(body.cost_nusd, body.tokens)
            case ledger_events.ReservationExpired():
                if body.state is ledger_api.ReservationState.IN_DOUBT:
                    expired = self._expired_entry(event, body)
                    if known.expired is None or expired.charged.units > known.expired.charged.units:
                        known.expired = expired
            case _:
                assert_never(body)

    def _read_interaction(self, record: LLMInteraction) -> None:
        envelope, result = record.envelope, record.result
        if envelope.tenant_id != self.tenant or result.served_from == "recorded":  # an unknown word is paid
            return
        if result.dispatched_at is None and not result.cost_nusd:
            return
        known = self._reservations.setdefault(
            result.reservation_id or reservation_id_of(envelope, result.attempt_number), _Reservation()
        )
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
        if event.tenant_id != self.tenant:
            return
        found = ledger_api.LedgerCheckpoint(body.generation, body.mark, body.sequence)
        known = self.checkpoint
        if known is None or _place_of(found) > _place_of(known):
            self.checkpoint = found


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

"""Rebuild a ledger from the log: what was charged, and how far the ledger had come."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never

from agentic_trading.governance.admission_decisions import SIMULATED, ClockMode, reservation_request
from agentic_trading.governance.controls_document import AppliedCommand
from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.events import (
    KINDS,
    AttemptDispatched,
    BudgetExhausted,
    BudgetExhaustionForecast,
    BudgetThresholdReached,
    LedgerCheckpointed,
    ReservationExpired,
)
from agentic_trading.governance.ledger import (
    LedgerCheckpoint,
    LedgerEntry,
    ReservationRequest,
    ReservationState,
    parts_of,
)
from agentic_trading.governance.limits import ScopeKind
from agentic_trading.governance.prices import Amount
from agentic_trading.ids import derived_id
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import Record


def checkpoint_event(tenant: str, checkpoint: LedgerCheckpoint, now: datetime) -> Event:
    """Return the record of how far a tenant's ledger has come."""
    epoch, epoch_id, sequence = checkpoint.epoch, checkpoint.epoch_id, checkpoint.sequence
    return LedgerCheckpointed(generation=epoch, mark=epoch_id, sequence=sequence).as_event(
        event_id=derived_id("budget.position", tenant, epoch, epoch_id, sequence),
        trace_id="budget",
        tenant_id=tenant,
        time=now,
    )


def rollback_error(
    tenant: str, known: LedgerCheckpoint, found: LedgerCheckpoint
) -> LedgerRolledBackError | None:
    """Return the error for a ledger found behind its `known` checkpoint, or None."""
    return LedgerRolledBackError(tenant, str(known), str(found)) if found.is_behind(known) else None


@dataclass(slots=True)
class LedgerRebuild:
    """Reads the records of logs one after the other; `entries` are then what a tenant's ledger has to hold.

    `mode` is that of the log: where it is simulated, windows go by the market's time, else by when a call was sent. A
    call is in doubt if it is on record as dispatched, or as charged in full after its lease, and as nothing else in any
    of the logs. `checkpoint` is the farthest on record.
    """

    tenant: str
    mode: ClockMode
    checkpoint: LedgerCheckpoint | None = None
    _booked: dict[tuple[str, int], LedgerEntry] = field(default_factory=dict)
    _dispatched: defaultdict[tuple[str, int], list[LedgerEntry]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _expired: dict[str, LedgerEntry] = field(default_factory=dict)
    _unsent: Counter[tuple[str, int]] = field(default_factory=Counter)

    def read(self, record: Record) -> None:
        """Read one record; those of other tenants change nothing.

        Raises `UnknownKindError` for what a newer release has put on record about money, and `UnreadableBodyError`.
        """
        if isinstance(record, LLMInteraction):
            self._read_interaction(record)
        elif record.tenant_id == self.tenant:
            self._read_event(record)

    def _read_event(self, event: Event) -> None:
        body = KINDS.must(event)
        match body:
            case LedgerCheckpointed():
                self._read_checkpoint(body)
            case AttemptDispatched():
                sent = self._sent_entry(event, body)
                self._dispatched[event.causation_id, body.attempt].append(sent)
            case ReservationExpired():
                if body.state is ReservationState.IN_DOUBT:
                    self._expired[body.reservation_id] = self._expired_entry(event, body)
            case BudgetThresholdReached() | BudgetExhausted() | BudgetExhaustionForecast() | AppliedCommand():
                pass  # of limits, and of how near they are: no money moves
            case None:
                pass
            case _:
                assert_never(body)

    def entries(self, *, lost_suffix: str = "") -> list[LedgerEntry]:
        """Return what was charged, in the order of the log, then what is in doubt as nothing else is on record.

        `lost_suffix` is added to the keys of the latter, for a ledger that must let these calls be made again. It is for
        the log of one process alone: a call that it reports as never sent, after noting the dispatch, is left out.
        """
        sent = [entry for call in self._dispatched for entry in self._unanswered(call, lost_suffix)]
        known = {entry.request.reservation_id for entry in self._booked.values()}
        known |= {entry.request.reservation_id for pending in self._dispatched.values() for entry in pending}
        expired = [_suffixed(entry, lost_suffix) for id_, entry in self._expired.items() if id_ not in known]
        return [*self._booked.values(), *sent, *expired]

    def _unanswered(self, call: tuple[str, int], lost_suffix: str) -> list[LedgerEntry]:
        """Return the dispatches of a call without an answer: each of them with `lost_suffix`, else the last one."""
        pending = self._dispatched[call]
        if lost_suffix:
            lost = pending[: max(0, len(pending) - self._unsent[call])]
            return [_suffixed(entry, lost_suffix * time) for time, entry in enumerate(lost, start=1)]
        return pending[-1:] if call not in self._booked else []

    def _read_interaction(self, record: LLMInteraction) -> None:
        envelope, result = record.envelope, record.result
        if envelope.tenant_id != self.tenant or result.served_from != "live":
            return
        call = envelope.envelope_id, result.attempt_number
        if result.dispatched_at is None and not result.cost_nusd:
            self._unsent[call] += 1
            return
        if pending := self._dispatched.get(call):
            pending.pop()
        sent_at = result.dispatched_at or result.timestamp
        at = envelope.as_of if self.mode in SIMULATED and envelope.as_of is not None else sent_at
        used = result.reserved_tokens if result.in_doubt else result.usage.total_tokens
        charged = Amount(result.cost_nusd, used, 0 if _was_unsent(record) else 1)
        reserved = Amount(max(result.reserved_nusd, result.cost_nusd), max(result.reserved_tokens, used))
        self._booked[call] = LedgerEntry(
            reservation_request(envelope, result.attempt_number, reserved, at),
            ReservationState.IN_DOUBT if result.in_doubt else ReservationState.SETTLED,
            charged,
        )

    def _sent_entry(self, event: Event, body: AttemptDispatched) -> LedgerEntry:
        """Return the entry of a call that is on record as dispatched only."""
        amount = Amount(body.reserved_nusd, body.reserved_tokens, body.reserved_calls)
        return self._in_doubt(body.reservation_id, body.scopes, amount, body.window_at or self._at(event))

    def _expired_entry(self, event: Event, body: ReservationExpired) -> LedgerEntry:
        """Return the entry of a call that is on record as charged after its lease only."""
        amount = Amount(body.nusd, body.tokens, body.calls)
        return self._in_doubt(body.reservation_id, body.scopes, amount, self._at(event))

    def _in_doubt(
        self, id_: str, scopes: Mapping[ScopeKind, str], amount: Amount, at: datetime
    ) -> LedgerEntry:
        tenant, key, attempt = parts_of(id_)
        known = {**scopes, ScopeKind.CALL: key, ScopeKind.TENANT: tenant}
        return LedgerEntry(
            ReservationRequest(key, attempt, known, amount, at), ReservationState.IN_DOUBT, amount
        )

    def _at(self, event: Event) -> datetime:
        return event.as_of if self.mode in SIMULATED and event.as_of is not None else event.time

    def _read_checkpoint(self, body: LedgerCheckpointed) -> None:
        found = LedgerCheckpoint(body.generation, body.mark, body.sequence)
        known = self.checkpoint
        if known is None or (found.epoch, found.sequence) >= (known.epoch, known.sequence):
            self.checkpoint = found


def _suffixed(entry: LedgerEntry, suffix: str) -> LedgerEntry:
    request = replace(entry.request, key=entry.request.key + suffix)
    return replace(entry, request=request)


def _was_unsent(record: LLMInteraction) -> bool:
    """Whether a dispatched attempt surely never arrived: it was not answered, and is not in doubt."""
    return record.result.reading is None and not record.result.in_doubt

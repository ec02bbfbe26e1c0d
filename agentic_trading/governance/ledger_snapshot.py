"""The format of a ledger snapshot in the log: sums of ended calls, and reservations that may still change."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, Field, ValidationError

from agentic_trading.governance.ledger import LedgerEntry, ReservationRequest, ReservationState
from agentic_trading.governance.limits import Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rules import ClockMode
from agentic_trading.llm.fields import ON_RECORD, Moment, Open, json_of

T = TypeVar("T")

SNAPSHOT_VERSION: Final = 1

MOST_IN_PART: Final = 300
"""The maximum number of charges and reservations in one record, which is then below the limit of a bus.

300 reservations with keys of 200 characters take 410 KB, and 300 charges 40 KB.
"""

Units = tuple[int, int, int]


class SnapshotCharge(NamedTuple):
    """The charges of several calls with the same scopes and the same windows.

    `at` is the latest time of their reservations.
    """

    scopes: Mapping[Open[ScopeKind], str]
    at: Moment
    nusd: int
    tokens: int
    calls: int


class SnapshotLimit(NamedTuple):
    """A limit that a request has set itself."""

    scope: Open[ScopeKind]
    id: str
    window: Open[Window]
    nusd: int | None
    tokens: int | None
    calls: int | None


class SnapshotEntry(BaseModel, frozen=True):
    """A `LedgerEntry`, without its tenant, key and attempt."""

    scopes: Mapping[Open[ScopeKind], str]
    at: Moment
    reserved: Units
    charged: Units
    state: Open[ReservationState]
    limits: tuple[SnapshotLimit, ...] = ()
    priority: int = 0

    @classmethod
    def of(cls, entry: LedgerEntry) -> "SnapshotEntry":
        """Return the format of an entry, which has a time."""
        request = entry.request
        if request.at is None:
            raise ValueError(f"{request.reservation_id} has no time. An entry of a log has one")
        return cls(
            scopes={kind: id_ for kind, id_ in request.scope_ids.items() if kind is not ScopeKind.TENANT},
            at=request.at,
            reserved=request.amount.units,
            charged=entry.charged.units,
            state=entry.state,
            limits=tuple(
                SnapshotLimit(one.scope, one.id, one.window, one.nusd, one.tokens, one.calls)
                for one in request.limits
            ),
            priority=request.priority,
        )

    def entry(self, tenant: str, key: str, attempt: int) -> LedgerEntry:
        """Return the entry."""
        request = ReservationRequest(
            key,
            attempt,
            {**self.scopes, ScopeKind.TENANT: tenant},
            Amount(*self.reserved),
            self.at,
            tuple(Limit(*one) for one in self.limits),
            self.priority,
        )
        return LedgerEntry(request, self.state, Amount(*self.charged))


class SnapshotDispatch(BaseModel, frozen=True):
    """A recorded dispatch."""

    entry: SnapshotEntry
    sent_at: Moment


class SnapshotReservation(BaseModel, frozen=True):
    """A reservation whose charge may still change, or which must be known by its id.

    Attributes:
        reservation_id: The reservation.
        dispatches: Its dispatches by the id of their event.
        unsent: The dispatches that were taken back.
        ends: Its ends by the id of their interaction.
        late: Nano-dollars and tokens of late answers by the id of their event.
        expired: Its charge after its lease.
        has_own_key: The caller has set the idempotency key.
        is_finished: Its call has a last attempt.
        time: The time of its last record.

    """

    reservation_id: str
    dispatches: Mapping[str, SnapshotDispatch] = Field(default_factory=dict)
    unsent: tuple[str, ...] = ()
    ends: Mapping[str, SnapshotEntry] = Field(default_factory=dict)
    late: Mapping[str, tuple[int, int]] = Field(default_factory=dict)
    expired: SnapshotEntry | None = None
    has_own_key: bool = False
    is_finished: bool = False
    time: Moment


class LedgerSnapshot(BaseModel, frozen=True):
    """A part of the ledger of a tenant, as the lines up to `line` give it.

    Attributes:
        version: The format. Readers ignore another one.
        line: The number of the last line that is included.
        head: The hash of that line. A snapshot counts only in the log that has this line.
        mode: The mode of the platform, which selects the times that are counted.
        zone: The time zone of the windows.
        part: The number of this part, from 1.
        parts: The number of parts.
        charges: Sums of ended calls.
        reservations: Reservations that are kept singly.

    """

    version: int
    line: int
    head: str
    mode: Open[ClockMode]
    zone: str
    part: int = 1
    parts: int = 1
    charges: tuple[SnapshotCharge, ...] = ()
    reservations: tuple[SnapshotReservation, ...] = ()


class SnapshotPlace(NamedTuple):
    """The line up to which a snapshot counts, and its terms."""

    line: int
    head: str
    mode: Open[ClockMode]
    zone: str


def place_of(part: LedgerSnapshot) -> SnapshotPlace:
    """Return the place and the terms of a part."""
    return SnapshotPlace(part.line, part.head, part.mode, part.zone)


def split_snapshot(
    place: SnapshotPlace, charges: Sequence[SnapshotCharge], reservations: Sequence[SnapshotReservation]
) -> list[LedgerSnapshot]:
    """Return a snapshot in parts of at most `MOST_IN_PART` items. Without items, it has one empty part."""
    # An empty snapshot has a part too, because a start must find the line up to which it counts.
    pieces: list[tuple[Sequence[SnapshotCharge], Sequence[SnapshotReservation]]] = [(charges, reservations)]
    if len(charges) + len(reservations) > MOST_IN_PART:
        pieces = [(piece, ()) for piece in _pieces(charges)] + [
            ((), piece) for piece in _pieces(reservations)
        ]
    return [
        LedgerSnapshot(
            version=SNAPSHOT_VERSION,
            **place._asdict(),
            part=part,
            parts=len(pieces),
            charges=tuple(sums),
            reservations=tuple(singles),
        )
        for part, (sums, singles) in enumerate(pieces, start=1)
    ]


def _pieces(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[start : start + MOST_IN_PART] for start in range(0, len(items), MOST_IN_PART)]


def read_snapshot(fields: Mapping[str, Any]) -> LedgerSnapshot | None:
    """Return the snapshot in an event, or None if it has none, or one in another format."""
    if fields.get("version") != SNAPSHOT_VERSION:
        return None
    try:
        return LedgerSnapshot.model_validate_json(json_of(fields), context=ON_RECORD)
    except ValidationError:
        return None

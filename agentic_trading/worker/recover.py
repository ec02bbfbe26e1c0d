"""What a worker finds when it starts: attempts that its log has no end of, and envelopes that no living worker runs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from agentic_trading.governance.errors import LedgerUnavailableError, ReservationStateError
from agentic_trading.governance.ledger import ReservationLedger, ReservationState
from agentic_trading.governance.rebuild import LostAttempt
from agentic_trading.logger import get_logger
from agentic_trading.worker.claim import ClaimState, ClaimStore, ClaimStoreUnavailableError

MOST_NAMED: Final = 20
"""How many attempts and envelopes the log of operators names one by one."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What was left: attempts without an end on record that the ledger knows, and claims of no living worker, by state.

    Of the attempts `in_doubt` are charged in full, `in_doubt_nusd` in all. What goes on does so when its envelope is
    delivered again: an answer that was kept is read, and nothing that may have been sent is sent again.
    """

    attempts: int = 0
    in_doubt: int = 0
    in_doubt_nusd: int = 0
    claims: Mapping[ClaimState, int] = field(default_factory=dict)


async def recover(
    unended: Mapping[str, LostAttempt], ledger: ReservationLedger, claims: ClaimStore, tenants: Iterable[str]
) -> RecoveryReport:
    """Report what earlier starts and workers that have ended have left; attempts that may have been sent are in doubt.

    `unended` are those of the worker's own log, by reservation: who sent them has ended. Where an answer of such a one was kept, who
    takes its envelope over charges that instead. What cannot be reached now is left as it is: the lease of a reservation
    ends it as well.
    """
    found: dict[str, ReservationState] = {}
    try:
        for id_ in unended:
            if (state := await _abandoned(id_, ledger)) is not None:
                found[id_] = state
    except LedgerUnavailableError as e:
        log.warning("attempts_not_recovered", reason=str(e))
    in_doubt = [id_ for id_, state in found.items() if state is ReservationState.IN_DOUBT]
    in_doubt_nusd = sum(unended[id_].charged.nusd for id_ in in_doubt)
    if found:
        log.warning(
            "attempts_left",
            attempts=len(found),
            in_doubt=len(in_doubt),
            in_doubt_nusd=in_doubt_nusd,
            reservations=list(found)[:MOST_NAMED],
        )
    return RecoveryReport(len(found), len(in_doubt), in_doubt_nusd, await _claims_left(claims, tenants))


async def _abandoned(reservation_id: str, ledger: ReservationLedger) -> ReservationState | None:
    """Put an attempt in doubt that was dispatched; return its state then, None for one that the ledger has forgotten."""
    state = await ledger.state_of(reservation_id)
    if state is ReservationState.DISPATCHED:
        with suppress(ReservationStateError):  # a taker was faster
            await ledger.in_doubt(reservation_id)
        state = await ledger.state_of(reservation_id)
    return state


async def _claims_left(claims: ClaimStore, tenants: Iterable[str]) -> Mapping[ClaimState, int]:
    try:
        left = [one for tenant in tenants for one in await claims.left(tenant)]
    except ClaimStoreUnavailableError as e:
        log.warning("claims_not_listed", reason=str(e))
        return {}
    counts = dict(Counter(one.state for one in left))
    if left:
        log.info("claims_left", **counts, envelopes=[one.key.envelope_id for one in left[:MOST_NAMED]])
    return counts

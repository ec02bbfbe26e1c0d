"""What the gate answers: the attempt may run, must not, must wait, or is another run's; and what it was charged."""

from dataclasses import dataclass
from datetime import datetime

from agentic_trading.governance.estimate import Amount
from agentic_trading.governance.ledger import ReservationRequest, ReservationState, Blocked
from agentic_trading.governance.limiter import Permit, Throttled
from agentic_trading.governance.quote import Quote
from agentic_trading.llm.capability import Capability
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.failure import FailureReason


@dataclass(frozen=True, slots=True)
class Admitted:
    """The attempt may run: `amount` is set aside for it, and is charged by the book with the id `price_book`.

    `permit` is its place in the traffic to its model, where that is limited.
    """

    reservation_id: str
    amount: Amount
    capability: Capability
    price_book: str
    priced_at: datetime
    permit: Permit | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """The attempt must not run; nothing is set aside and nothing was paid."""

    reason: FailureReason


@dataclass(frozen=True, slots=True)
class Deferred:
    """The attempt has to wait; nothing is set aside.

    It would fit, but for what calls in flight hold, or others wait for (`Held`, with what was asked of the ledger); or
    its model is asked too fast already (`Wait`).
    """

    envelope: LLMEnvelope
    held: Blocked | Throttled
    ask: ReservationRequest | None = None
    quote: Quote | None = None


@dataclass(frozen=True, slots=True)
class AlreadyDispatched:
    """Another run has sent this attempt, or is about to; what it costs and gave is that run's to settle and to tell."""

    reservation_id: str
    state: ReservationState


@dataclass(frozen=True, slots=True)
class Charge:
    """What the attempt was charged, in nano-dollars; `overrun_nusd` of it is above the reservation.

    `late` corrects an earlier charge in doubt. `in_doubt` may still be corrected. Without `priced` the usage, or the
    model that served, had no price in the book, and the whole reservation was charged at least.
    """

    cost_nusd: int
    overrun_nusd: int = 0
    late: bool = False
    in_doubt: bool = False
    priced: bool = True

"""Who sends what comes over the bus, and which events they may put on record."""

from dataclasses import dataclass

from agentic_trading.bus.message import Delivery
from agentic_trading.bus.signing import Verifier
from agentic_trading.governance.policy import Policy
from agentic_trading.llm.event import Event
from agentic_trading.worker.errors import UndeliverableError

NOT_ALLOWED = "not_allowed"

OURS = ("operator.", "budget.", "attempt.")
"""Kinds of events that only workers make: a ledger is rebuilt from them, and operators are told by them."""


@dataclass(frozen=True, slots=True)
class ProducerAcl:
    """Knows senders by their signatures, where a `verifier` asks for them; else all are `principal`, who is trusted.

    Without a `policy` everybody may put events of every tenant on record.
    """

    verifier: Verifier | None = None
    principal: str = ""
    policy: Policy | None = None

    def of(self, delivery: Delivery) -> str:
        """Return who sent a message; raises `SignatureError` if that is not proved."""
        return self.principal if self.verifier is None else self.verifier.principal_of(delivery.message)

    def check_event(self, principal: str, event: Event) -> None:
        """Raise `UndeliverableError` for an event that `principal` may not put on record."""
        if event.kind.startswith(OURS):
            why = f"an event of kind {event.kind!r:.100} is a worker's own; allowed are other kinds"
            raise UndeliverableError(NOT_ALLOWED, why)
        self.check_tenant(principal, event.tenant_id)

    def check_tenant(self, principal: str, tenant_id: str) -> None:
        """Raise `UndeliverableError` for a tenant for whom `principal` may send nothing.

        Nothing of a forged tenant goes on record: it would stand in the place of the real one.
        """
        problem = self.policy.tenant_problem(principal, tenant_id) if self.policy is not None else None
        if problem is not None:
            raise UndeliverableError(NOT_ALLOWED, problem.description)

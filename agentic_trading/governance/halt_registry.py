"""What is halted now, and the calls that a halt has to reach."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentic_trading.governance.controls_document import PLATFORM, TenantControls, Halt
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.failure import FailureKind, FailureReason


@dataclass(slots=True)
class HaltRegistry:
    """Halts as they were last read, and who is waiting or under way; those that a new halt concerns are ended.

    Where it is not known what was ordered, a tenant is closed: as if all of it was halted.
    """

    _by_tenant: dict[str, TenantControls] = field(default_factory=dict)
    _closed: dict[str, str] = field(default_factory=dict)
    _reachable: dict[asyncio.Timeout, LLMEnvelope] = field(default_factory=dict)

    def knows(self, tenant: str) -> bool:
        """Whether it was ever told what is ordered for a tenant."""
        return tenant in self._by_tenant

    def update(self, tenant: str, controls: TenantControls) -> None:
        """Take note of what operators have ordered for a tenant, or for all by the platform's own name."""
        self._closed.pop(tenant, None)
        self._by_tenant[tenant] = controls
        self._end_what_is_halted()

    def close(self, tenant: str, why: str) -> None:
        """Let nothing of a tenant run, or nothing at all by the platform's name, until `open` or `update`."""
        self._closed[tenant] = why
        self._end_what_is_halted()

    def open(self, tenant: str) -> None:
        """Let what was noted last hold again; harmless where nothing is closed."""
        self._closed.pop(tenant, None)

    def problem(self, envelope: LLMEnvelope) -> FailureReason | None:
        """Return why nothing of this envelope may run, or None."""
        why = self._why(envelope)
        if why is None:
            return None
        return FailureReason(category=FailureKind.HALTED, description=why, recoverable=True)

    @contextmanager
    def reached(self, envelope: LLMEnvelope, limit: asyncio.Timeout) -> Iterator[None]:
        """Have `limit` run out as soon as the envelope is halted, at once if it is, for as long as the block lasts."""
        self._reachable[limit] = envelope
        if self._why(envelope) is not None:
            limit.reschedule(0)
        try:
            yield
        finally:
            del self._reachable[limit]

    def _end_what_is_halted(self) -> None:
        for reach, envelope in list(self._reachable.items()):
            if self._why(envelope) is not None and not reach.expired():
                reach.reschedule(0)

    def _why(self, envelope: LLMEnvelope) -> str | None:
        for tenant in (PLATFORM, envelope.tenant_id):
            if tenant in self._closed:
                return f"it is not known what is halted for tenant {tenant}: {self._closed[tenant]}"
            controls = self._by_tenant.get(tenant)
            halt = controls.halt_for(envelope) if controls is not None else None
            if halt is not None:
                return _told(halt)
        return None


def _told(halt: Halt) -> str:
    why = f": {halt.why}" if halt.why else ""
    return f"{halt.scope} {halt.id} is halted by {halt.by} since {halt.at.isoformat()}{why}"

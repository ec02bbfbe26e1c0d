"""What a process knows of one tenant's ledger on the server: its limits, and how far it had come."""

from collections.abc import Sequence

from agentic_trading.governance.errors import LedgerRolledBackError
from agentic_trading.governance.redis_keys import LedgerKeys
from agentic_trading.governance.ledger import LedgerCheckpoint
from agentic_trading.governance.ledgers.redis_counters import ReservationPlanner
from agentic_trading.governance.ledgers.redis_codec import TenantLimits, ScriptReply
from agentic_trading.governance.ledgers.limit_set import CountedWindows, LimitSet
from agentic_trading.governance.limit import Limit


class RedisTenantState:
    """Grows with each answer; what is sent with the next step, the server must not be behind."""

    def __init__(
        self, name: str, keys: LedgerKeys, planner: ReservationPlanner, limits: Sequence[Limit], counted: CountedWindows
    ) -> None:
        self.name = name
        self.keys = keys
        self.planner = planner
        self.known = LedgerCheckpoint(0, "", 0)
        self.own = 0
        self.revision = 0
        self._limits = limits
        self._counted = tuple(counted)
        planner.follow(LimitSet(limits, counted))

    @property
    def known_facts(self) -> tuple[int, str, int, int]:
        """What every script is told first: generation, mark and sequence that are known, and that of our last step."""
        return self.known.generation, self.known.mark, self.known.sequence, self.own

    def saw(self, reply: ScriptReply) -> None:
        """Take note of an answer; answers may come in another order than the steps were taken."""
        known, generation = self.known, reply.generation
        if generation > known.generation:
            self.known, self.own = reply.position, reply.own
        elif generation == known.generation and not self.is_behind(reply):
            self.own = max(self.own, reply.own)
            if reply.sequence > known.sequence:
                self.known = reply.position

    def is_behind(self, reply: ScriptReply) -> bool:
        """Whether an answer comes from a ledger that has lost what another one knew."""
        known = self.known
        return reply.generation < known.generation or (
            reply.generation == known.generation and reply.mark.decode() != known.mark
        )

    def expect(self, position: LedgerCheckpoint) -> None:
        """Take note of how far the ledger had come in another process, if that is not what is known, or before it."""
        known = self.known
        if position.generation > known.generation or (
            position.generation == known.generation
            and (position.mark != known.mark or position.sequence > known.sequence)
        ):
            if (position.generation, position.mark) != (known.generation, known.mark):
                self.own = 0
            self.known = position

    def follow(self, limits: TenantLimits) -> None:
        """Count by what the server says from now on; before a first `adopt`, by what this process was made with."""
        self.revision = limits.revision
        self.planner.follow(self.rules(limits))

    def rules(self, limits: TenantLimits) -> LimitSet:
        """Return what the server's limits come to."""
        held_to = limits.limits if limits.version > 0 else self._limits
        return LimitSet(held_to, (*self._counted, *limits.counted))

    def gone_back(self, reply: ScriptReply) -> LedgerRolledBackError:
        """Return the error for an answer from a closed ledger."""
        return LedgerRolledBackError(self.name, reply.closed.decode(), _spelled(reply.position))


def _spelled(position: LedgerCheckpoint) -> str:
    return f"generation {position.generation}, step {position.sequence}"

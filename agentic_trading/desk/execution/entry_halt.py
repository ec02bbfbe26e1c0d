"""The halt of entries: after a limit on the loss of the account, and after errors of the agent."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Final, Protocol

from agentic_trading.canonical import utc_text
from agentic_trading.desk.exchange import Cancellation
from agentic_trading.desk.execution.order_router import OrderRouter, TradeJournal
from agentic_trading.desk.execution.risk_events import RiskResumed, RiskTripped
from agentic_trading.desk.instrument import EXACT, ZERO
from agentic_trading.ids import derived_id
from agentic_trading.trading_limits import LossLimits, LossRule

AGENT_FAILED: Final = "agent_failed"
"""The rule that halts entries after errors of an agent."""


@dataclass(frozen=True, slots=True)
class OperatorResume:
    """An operator's command to allow entries again, with the id of its event."""

    by: str
    why: str
    command_id: str


class ResumeSource(Protocol):
    """The source of an operator's commands to resume entries: the controls of a session, or its log."""

    async def halted(self, close: datetime, why: str) -> None:
        """Inform operators that entries are halted since a close, and why."""
        ...

    async def resume_at(self, close: datetime, why: str) -> OperatorResume | None:
        """Return the command that resumes the entries at a close, or None. `why` is the reason of the halt."""
        ...


class NoResumes:
    """A source without commands, for a backtest: its entries stay halted to the end."""

    async def halted(self, close: datetime, why: str) -> None:
        """Do nothing."""

    async def resume_at(self, close: datetime, why: str) -> None:
        """Return None."""


@dataclass(frozen=True, slots=True)
class CheckedClose:
    """The effect of a close on the entries: cancelled orders, and whether entries are allowed again."""

    cancelled: Sequence[Cancellation] = ()
    is_resumed: bool = False


class EntryHalt:
    """Halts the entries of a session, and allows them again.

    The equity is checked at each close, after the fills of its bars and before the agent. If a limit is
    reached, this is recorded, unfilled entries are cancelled, and the router denies further entries. Exits
    are never denied. The state depends only on bars, fills and commands on record, so that a replay and a
    resumed run repeat it.

    An operator's resume sets the base of all limits to the equity at that close. Otherwise a limit would be
    reached again at once.

    Args:
        session_id: The ids of its events are derived from it.
        limits: The limits.
        zone: The time zone of days.
        router: The router that denies entries.
        journal: Records the events.
        resumes: The commands of operators.

    """

    def __init__(
        self,
        session_id: str,
        limits: LossLimits,
        zone: tzinfo,
        router: OrderRouter,
        journal: TradeJournal,
        resumes: ResumeSource,
    ) -> None:
        self._session_id = session_id
        self._limits = limits
        self._rules = limits.rules
        self._zone = zone
        self._router = router
        self._journal = journal
        self._resumes = resumes
        self._causes: dict[str, str] = {}
        self._bases: dict[LossRule, Decimal] = {}
        self._day = date.min
        self._last = ZERO

    @property
    def is_active(self) -> bool:
        """Whether entries are halted."""
        return bool(self._causes)

    @property
    def is_after_errors(self) -> bool:
        """Whether entries are halted after errors of the agent."""
        return AGENT_FAILED in self._causes

    @property
    def _why(self) -> str:
        return "; ".join(self._causes.values())

    async def after_errors(self, at: datetime) -> None:
        """Halt entries after errors of the agent. The caller records them."""
        await self._halt(AGENT_FAILED, "errors of the agent", at)

    async def check(self, at: datetime) -> CheckedClose:
        """Check the limits at a close, after its fills and before the agent."""
        if not (self._rules or self._causes):
            return CheckedClose()
        equity = await self._router.equity()
        resumed = await self._resume_next_day(at, equity) if self._begins_day(at, equity) else False
        resumed = await self._resume_by_operator(at, equity) or resumed
        reached = [rule for rule in self._rules if self._is_reached(rule, equity)]
        for rule in reached:
            await self._trip(rule, at, equity)
        if "max_drawdown_pct" in self._bases:
            self._bases["max_drawdown_pct"] = max(self._bases["max_drawdown_pct"], equity)
        self._last = equity
        cancelled = await self._router.withdraw_entries() if reached else []
        return CheckedClose(cancelled, resumed)

    def _begins_day(self, at: datetime, equity: Decimal) -> bool:
        """Set the bases of the first close, and that of a new day. Return whether a day has ended."""
        # The day of the bar, because a close at midnight ends it.
        day = (at - timedelta(microseconds=1)).astimezone(self._zone).date()
        is_first, is_new, self._day = self._day == date.min, day != self._day, day
        if is_first:
            self._bases = dict.fromkeys(self._rules, equity)
        elif is_new and "max_daily_loss_pct" in self._bases:
            self._bases["max_daily_loss_pct"] = self._last
        return is_new and not is_first

    def _floor(self, rule: LossRule) -> Decimal:
        """Return the equity at which a limit is reached."""
        base, part = self._bases[rule], EXACT.divide(self._rules[rule], 100)
        return EXACT.subtract(base, EXACT.multiply(base.copy_abs(), part))

    def _is_reached(self, rule: LossRule, equity: Decimal) -> bool:
        return rule not in self._causes and equity <= self._floor(rule)

    async def _trip(self, rule: LossRule, at: datetime, equity: Decimal) -> None:
        is_daily = rule == "max_daily_loss_pct"
        base, floor = self._bases[rule], self._floor(rule)
        tripped = RiskTripped(
            rule=rule,
            percent=self._rules[rule],
            base=base,
            floor=floor,
            equity=equity,
            day=self._day.isoformat() if is_daily else "",
            zone=str(self._zone) if is_daily else "",
            resume=self._limits.daily_loss_resume if is_daily else "operator",
        )
        trace_id = self._trace(at)
        await self._journal.publish(tripped, derived_id("risk.tripped", trace_id, rule), trace_id, "", at)
        why = f"equity {equity} at {utc_text(at)}, and {rule} is reached at {floor}"
        await self._halt(rule, why, at)

    async def _resume_next_day(self, at: datetime, equity: Decimal) -> bool:
        rule = "max_daily_loss_pct"
        if self._limits.daily_loss_resume != "next day" or rule not in self._causes:
            return False
        await self._resumed(RiskResumed(rules=(rule,), equity=equity), at, "")
        return not self.is_active

    async def _resume_by_operator(self, at: datetime, equity: Decimal) -> bool:
        if not self.is_active:
            return False
        command = await self._resumes.resume_at(at, self._why)
        if command is None:
            return False
        resumed = RiskResumed(
            rules=tuple(self._causes),
            equity=equity,
            by=command.by,
            why=command.why,
            command_id=command.command_id,
        )
        await self._resumed(resumed, at, "operator")
        self._bases = dict.fromkeys(self._rules, equity)
        return True

    async def _resumed(self, body: RiskResumed, at: datetime, who: str) -> None:
        trace_id = self._trace(at)
        await self._journal.publish(body, derived_id("risk.resumed", trace_id, who), trace_id, "", at)
        self._release(body.rules)

    async def _halt(self, rule: str, why: str, at: datetime) -> None:
        if rule in self._causes:
            return
        self._causes[rule] = why
        self._router.entries_halted = next(iter(self._causes))
        await self._resumes.halted(at, self._why)

    def _release(self, rules: Iterable[str]) -> None:
        for rule in rules:
            self._causes.pop(rule, None)
        self._router.entries_halted = next(iter(self._causes), "")

    def _trace(self, at: datetime) -> str:
        return derived_id(self._session_id, "risk", utc_text(at))

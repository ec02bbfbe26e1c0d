"""The commands of operators that allow the entries of a session again: from its controls, or on record."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from agentic_trading.clock import SystemClock
from agentic_trading.desk.execution.entry_halt import OperatorResume
from agentic_trading.desk.execution.risk_events import RiskResumed
from agentic_trading.governance.commands import AddHalt, execute_command
from agentic_trading.governance.controls_document import ControlStore, HaltScope, TenantControls, event_of
from agentic_trading.governance.errors import CommandError, ControlError
from agentic_trading.llm.event import Event, Kinds
from agentic_trading.llm.store import Record
from agentic_trading.logger import get_logger
from agentic_trading.platform.port_adapters import boards_of

_RESUMED: Final = Kinds[RiskResumed](RiskResumed)
_BY: Final = "the session"
_LONG_AGO = datetime.min.replace(tzinfo=UTC)

log = get_logger()


@dataclass(slots=True)
class RecordedResumes:
    """The commands of operators in the log of a run, by the close at which they took effect."""

    by_close: dict[datetime, OperatorResume] = field(default_factory=dict)

    def read(self, record: Record) -> None:
        """Read the next record of the log."""
        body = _RESUMED.of(record) if isinstance(record, Event) else None
        if body is not None and body.command_id and isinstance(record, Event) and record.as_of is not None:
            self.by_close[record.as_of] = OperatorResume(body.by, body.why, body.command_id)

    async def halted(self, close: datetime, why: str) -> None:
        """Do nothing, because the run has informed its operators."""

    async def resume_at(self, close: datetime, why: str) -> OperatorResume | None:  # noqa: ARG002 - of the port
        """Return the recorded command of a close, or None."""
        return self.by_close.get(close)


@dataclass(frozen=True, slots=True)
class ControlsPlace:
    """The place of a session's controls: its folder, or a server, and the tenant."""

    folder: Path
    url: str | None
    tenant: str

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[ControlStore]:
        """Open the controls while the block runs."""
        async with AsyncExitStack() as stack:
            controls, statuses = await asyncio.to_thread(boards_of, self.url, self.folder)
            for port in (controls, statuses):
                await stack.enter_async_context(aclosing(port))
            yield controls


class OperatorResumes:
    """The commands of operators of a session on paper.

    Halted entries are a halt in the controls of the session, which `resume --entries` removes. Up to the last
    close of an interrupted run, the commands on record apply instead.

    Args:
        place: The place of the controls.
        session_id: The session.
        recorded: The commands in the log of an interrupted run.
        known_until: The last closes of an interrupted run.

    """

    def __init__(
        self,
        place: ControlsPlace,
        session_id: str,
        recorded: RecordedResumes,
        known_until: Iterable[datetime] = (),
    ) -> None:
        self._place = place
        self._session_id = session_id
        self._recorded = recorded
        self._known_until = max(known_until, default=_LONG_AGO)
        self._used = {each.command_id for each in recorded.by_close.values()}

    async def halted(self, close: datetime, why: str) -> None:
        """Store the halt, so that operators see it and can remove it."""
        if close > self._known_until:
            command = f"agentic-trading resume --entries {self._session_id}"
            log.warning("entries_halted", why=why, resume_with=command)
            with _logged("entries_halt_not_stored"):
                async with self._place.open() as controls:
                    await self._store(controls, why)

    async def resume_at(self, close: datetime, why: str) -> OperatorResume | None:
        """Return the command that removed the halt since the last close, or None.

        Entries stay halted while the controls cannot be read.
        """
        if close <= self._known_until:
            return await self._recorded.resume_at(close, why)
        with _logged("entries_stay_halted"):
            async with self._place.open() as controls:
                document = await controls.read(self._place.tenant)
                if document.halt(HaltScope.ENTRIES, self._session_id) is not None:
                    return None
                if (command := self._new_resume(document)) is None:
                    # Again, because a crash may have come between the halt and this document.
                    await self._store(controls, why)
                return command
        return None

    def _new_resume(self, document: TenantControls) -> OperatorResume | None:
        """Return the last command on these entries, if it is a resume that has not taken effect yet."""
        named = (HaltScope.ENTRIES, self._session_id)
        about = [action for action in document.actions if (action.scope, action.id) == named]
        if not about or about[-1].kind != "resume":
            return None
        event_id = event_of(self._place.tenant, about[-1]).id
        if event_id in self._used:
            return None
        self._used.add(event_id)
        return OperatorResume(about[-1].by, about[-1].why, event_id)

    async def _store(self, controls: ControlStore, why: str) -> None:
        command = AddHalt(HaltScope.ENTRIES, self._session_id)
        with suppress(CommandError):  # it is halted already
            now = SystemClock().now()
            await execute_command(controls, self._place.tenant, command, by=_BY, why=why, at=now)


@contextmanager
def _logged(event: str) -> Generator[None]:
    """Log an error of the controls. The next close tries again."""
    try:
        yield
    except ControlError as e:
        log.warning(event, error=str(e))

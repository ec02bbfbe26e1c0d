"""The commands that resume halted entries, from the controls of a session and from its log."""

import asyncio
from datetime import timedelta
from pathlib import Path

from agentic_trading.desk.execution.entry_halt import OperatorResume
from agentic_trading.desk.execution.risk_events import RiskResumed
from agentic_trading.desk.instrument import ZERO
from agentic_trading.desk.session.entry_resumes import ControlsPlace, OperatorResumes, RecordedResumes
from agentic_trading.governance.controls_document import HaltScope
from tests import redis_server
from tests.build import NOW, envelope
from tests.cli.conftest import Command, _own_place, command  # noqa: F401 - its fixtures

LATER = NOW + timedelta(minutes=5)
SESSION = "session-1"


def place(folder: Path) -> ControlsPlace:
    return ControlsPlace(folder, None, "default")


def resumes(folder: Path, recorded: RecordedResumes | None = None) -> OperatorResumes:
    return OperatorResumes(place(folder), SESSION, recorded or RecordedResumes(), [NOW])


async def is_halted(folder: Path) -> bool:
    async with place(folder).open() as controls:
        return (await controls.read("default")).halt(HaltScope.ENTRIES, SESSION) is not None


async def test_halt_is_stored_for_operators(tmp_path: Path) -> None:
    await resumes(tmp_path).halted(LATER, "equity 98 of 100")

    async with place(tmp_path).open() as controls:
        (halt,) = (await controls.read("default")).halts
    assert (halt.scope, halt.id, halt.why) == ("entries", SESSION, "equity 98 of 100")
    assert not halt.concerns(envelope())
    assert not halt.model_copy(update={"id": "*"}).concerns(envelope())


async def test_closes_of_interrupted_run_use_the_log(tmp_path: Path) -> None:
    recorded = RecordedResumes({NOW: OperatorResume("ann", "", "command-1")})
    source = resumes(tmp_path, recorded)

    await source.halted(NOW, "why")

    assert not await is_halted(tmp_path)
    assert await source.resume_at(NOW, "why") == OperatorResume("ann", "", "command-1")
    assert await source.resume_at(NOW - timedelta(minutes=5), "why") is None


async def test_halt_that_a_crash_has_lost_is_stored_at_next_close(tmp_path: Path) -> None:
    assert await resumes(tmp_path).resume_at(LATER, "why") is None
    assert await is_halted(tmp_path)


async def test_unreadable_controls_keep_entries_halted(tmp_path: Path) -> None:
    source = resumes(tmp_path)
    await source.halted(LATER, "why")
    (file,) = await asyncio.to_thread(lambda: [*tmp_path.glob("controls-*.json")])
    await asyncio.to_thread(file.write_text, "{", encoding="utf-8")

    assert await source.resume_at(LATER, "why") is None
    await source.halted(LATER, "again")


async def test_next_day_is_no_command_of_an_operator() -> None:
    recorded = RecordedResumes()
    body = RiskResumed(rules=("max_daily_loss_pct",), equity=ZERO)
    recorded.read(body.as_event(event_id="1", trace_id="1", tenant_id="default", time=NOW, as_of=NOW))

    assert await recorded.resume_at(NOW, "why") is None
    assert recorded.by_close == {}


def test_operator_resumes_over_a_ledger_server(
    command: Command,  # noqa: F811 - a fixture
    own_redis: redis_server.RealServer,
    tmp_path: Path,
) -> None:
    source = OperatorResumes(
        ControlsPlace(tmp_path, own_redis.url, "default"), SESSION, RecordedResumes(), [NOW]
    )
    asyncio.run(source.halted(LATER, "why"))

    before = asyncio.run(source.resume_at(LATER, "why"))
    ended = command("resume", "--entries", SESSION, "--why", "checked", "--ledger", own_redis.url)
    resumed = asyncio.run(source.resume_at(LATER, "why"))
    own_redis.kill()

    assert (before, ended.code) == (None, 0)
    assert resumed is not None
    assert resumed.why == "checked"
    # Without the server, nobody can have resumed them.
    assert asyncio.run(source.resume_at(LATER + timedelta(minutes=5), "why")) is None


def test_operator_resumes_by_command(command: Command, tmp_path: Path) -> None:  # noqa: F811 - a fixture
    source = resumes(tmp_path)
    (tmp_path / "interactions.jsonl").touch()
    asyncio.run(source.halted(LATER, "why"))

    ended = command("resume", "--entries", SESSION, "--why", "checked", "--store", tmp_path)
    again = command("resume", "--entries", SESSION, "--store", tmp_path)
    both = command("resume", "--entries", SESSION, "--agent", "a", "--store", tmp_path)

    assert ended.code == 0
    first = asyncio.run(source.resume_at(LATER, "why"))
    assert first is not None
    assert first.why == "checked"
    # A used command does not resume a later halt.
    assert asyncio.run(source.resume_at(LATER + timedelta(minutes=5), "why")) is None
    assert "is not halted" in again.err
    assert "--agent is given together with --entries" in both.err

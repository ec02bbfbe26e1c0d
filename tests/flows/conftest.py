"""One session for all tests that only look at what it has left."""

import asyncio
import shutil
from pathlib import Path

import pytest

from agentic_trading.app.report import RunReport
from tests.flows.sessions import FAULTS, ran


@pytest.fixture(scope="session")
def faulty_session(tmp_path_factory: pytest.TempPathFactory) -> RunReport:
    """Return the report of a session over both samples, some of whose answers failed; tests change copies of it."""
    return asyncio.run(ran(tmp_path_factory.mktemp("sessions") / "faulty", inject=FAULTS))


@pytest.fixture
def recorded(faulty_session: RunReport, tmp_path: Path) -> RunReport:
    """Return the report of a session that lies in the test's own folder."""
    shutil.copytree(faulty_session.log.parent, tmp_path, dirs_exist_ok=True)
    moved = {name: tmp_path / getattr(faulty_session, name).name for name in ("log", "decision_log")}
    return faulty_session.model_copy(update=moved)

"""The sessions of several tests."""

import asyncio
from pathlib import Path

import pytest

from agentic_trading.desk.report.record import RunOnRecord, read_run
from agentic_trading.desk.session.report import RunReport
from tests.desk.report.recorded import FAULTY, PORTFOLIO, SMOLLM2, TWO, priced_rules
from tests.flows.sessions import ran

SESSIONS = {"recorded": SMOLLM2, "faults": FAULTY, "two symbols": TWO, "portfolio": PORTFOLIO}


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunReport]:
    """Return the reports of four sessions at their ends, by name. The rules of one have a price."""
    folder = tmp_path_factory.mktemp("sessions")
    priced = {"prices_file": priced_rules(folder)}
    changes = {name: fields | (priced if name == "faults" else {}) for name, fields in SESSIONS.items()}
    return {name: asyncio.run(ran(folder / name, **fields)) for name, fields in changes.items()}


@pytest.fixture(scope="session")
def runs(reports: dict[str, RunReport]) -> dict[str, RunOnRecord]:
    """Return the same sessions, read from their records."""
    return {name: asyncio.run(read_run(report.log.parent)) for name, report in reports.items()}


@pytest.fixture
def faulty(runs: dict[str, RunOnRecord]) -> RunOnRecord:
    """Return the session with faults and prices."""
    return runs["faults"]


@pytest.fixture
def folder(faulty: RunOnRecord) -> Path:
    """Return its folder."""
    return faulty.folder.path

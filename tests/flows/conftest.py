"""One session for all tests that only look at what it has left, and a fleet of workers on a bus of real servers."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_trading.desk.session.report import RunReport
from agentic_trading.ids import random_id
from agentic_trading.platform.adapters import functions_in
from tests import redis_server
from tests.flows.fleet import make_topics
from tests.flows.sessions import FAULTS, ran
from tests.worker_processes import RunningWorker, worker


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


@pytest.fixture
def redis() -> Iterator[redis_server.RealServer]:
    """Give a server of the test's own; that both kinds of servers do, the contracts show."""
    with redis_server.own_server("valkey") as server:
        yield server


@pytest.fixture
def bus(request: pytest.FixtureRequest, redis: redis_server.RealServer) -> str:
    """Return the address of a bus: on Kafka, but for a test that asks for others."""
    if getattr(request, "param", "kafka") == "redis":
        return redis.url
    return f"kafka://{request.getfixturevalue('kafka_servers')}"


def named_of(package: str) -> str:
    """Return the tables of a configuration that name all checks and rules of a package."""
    tables = functions_in([package]).items()
    rows = {name: "".join(f'"{one}" = "{package}"\n' for one in row) for name, row in tables}
    return "".join(f"[{name}]\n{row}" for name, row in rows.items())


@pytest.fixture
def config(bus: str, redis: redis_server.RealServer, tmp_path: Path) -> Path:
    """Return the file of a fleet whose bus has no topics yet."""
    path = tmp_path / "fleet.toml"
    path.write_text(
        f'mode = "backtest"\n[bus]\nurl = "{bus}"\nnamespace = "flow-{random_id()}"\n'
        f'[ledger]\nurl = "{redis.url}"\n[providers.rules]\n[providers.scripted]\n'
        'options = { answers = ["{}", "{}", "{}", "{}", "{}", "{}"] }\n' + named_of("agentic-trading"),
        encoding="utf-8",
    )
    return path


@pytest.fixture
def fleet(config: Path, tmp_path: Path) -> Iterator[tuple[RunningWorker, RunningWorker]]:
    """Give two workers that serve."""
    make_topics(config)
    words = ("--config", str(config))
    with worker(tmp_path / "logs", "w1", *words) as one, worker(tmp_path / "logs", "w2", *words) as other:
        one.is_ready()
        other.is_ready()
        yield one, other

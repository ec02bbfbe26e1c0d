"""A dashboard for tests: it runs on a thread of its own, so that a browser or a client can open it."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from threading import Thread
from urllib.parse import urlencode, urlsplit

import pytest

from agentic_trading.desk.session.report import RunReport
from agentic_trading.monitor.page import DashboardPage
from agentic_trading.monitor.pages import pages_of
from agentic_trading.monitor.server import Dashboard, dashboard_server
from agentic_trading.monitor.sources import SourceOptions, Sources, open_sources
from tests.desk.report.recorded import FAULTY, SMOLLM2, priced_rules
from tests.flows.sessions import ran
from tests.monitor.fleet import Fleet, play, running_fleet
from tests.redis_server import own_server, servers


@dataclass(frozen=True)
class Answered:
    """An answer of the dashboard."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass(frozen=True)
class RunningDashboard:
    """A running dashboard and its URL."""

    url: str

    def get(
        self, path: str = "/", *, method: str = "GET", body: str | None = None, **headers: str
    ) -> Answered:
        """Send a request and return its answer. `Host` and others are given as headers."""
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=20)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return Answered(answer.status, dict(answer.getheaders()), answer.read().decode())
        finally:
            connection.close()

    def events(self, path: str, is_last: Callable[[str], bool], *, most: int = 40) -> list[str]:
        """Return the live parts of a page up to one that is meant, at most so many."""
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        try:
            connection.request("GET", path)
            answer, parts = connection.getresponse(), list[str]()
            while len(parts) < most and not (parts and is_last(parts[-1])):
                lines = [line.decode() for line in iter(answer.readline, b"\n")]
                parts.append("".join(line.removeprefix("data: ") for line in lines[1:]))
            return parts
        finally:
            connection.close()

    def enter(self, token: str) -> Answered:
        """Send the form of a token."""
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.get("/enter", method="POST", body=urlencode({"token": token}), **form)


PagesOf = Callable[[Sources], list[DashboardPage]]
StartDashboard = Callable[..., RunningDashboard]


@contextmanager
def running_dashboard(
    options: SourceOptions, *, pages: PagesOf = pages_of, token: str = ""
) -> Iterator[RunningDashboard]:
    """Run a dashboard while the block runs."""
    loop, started, ends = asyncio.new_event_loop(), Future[str](), asyncio.Event()

    async def run() -> None:
        async with open_sources(options) as sources:
            found = await asyncio.to_thread(pages, sources)
            dashboard = Dashboard(sources, found, host="127.0.0.1", token=token)
            async with dashboard_server(dashboard, "127.0.0.1", 0) as url:
                started.set_result(url)
                await ends.wait()

    def work() -> None:
        try:
            loop.run_until_complete(run())
        except BaseException as e:
            if started.done():
                raise
            started.set_exception(e)
        finally:
            loop.close()

    thread = Thread(target=work, name="dashboard", daemon=True)
    thread.start()
    try:
        yield RunningDashboard(started.result(timeout=30))
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ends.set)
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture
def dashboard() -> Iterator[StartDashboard]:
    """Return a function that starts a dashboard of `SourceOptions`, which ends with the test."""
    with ExitStack() as stack:
        yield lambda options, **given: stack.enter_context(running_dashboard(options, **given))


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Return two workers with three tenants in different states, on a server of their own."""
    name = next((each for each in servers() if each != "given"), "valkey")
    with own_server(name) as server, running_fleet(server.url, tmp_path_factory.mktemp("fleet")) as running:
        play(running)
        yield running


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunReport]:
    """Return the reports of two sessions in one folder: a recorded one, and one with faults and prices."""
    folder = tmp_path_factory.mktemp("sessions")
    fields = {"recorded": SMOLLM2, "faults": FAULTY | {"prices_file": priced_rules(folder)}}
    return {name: asyncio.run(ran(folder / name, **each)) for name, each in fields.items()}

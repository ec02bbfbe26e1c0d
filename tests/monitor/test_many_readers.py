"""A thousand tenants, a hundred browsers, and a log with hostile texts that grows: pages stay, and tenants stay apart."""

import asyncio
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.governance.limits import ScopeKind
from agentic_trading.governance.status_feed import FileStatusFeed
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.store import Record
from agentic_trading.monitor.live import MOST_STREAMS
from agentic_trading.monitor.sources import SourceOptions
from tests.audit.reading import call, step
from tests.governance.reporting import told
from tests.monitor.conftest import RunningDashboard, running_dashboard
from tests.monitor.record_pages import HOSTILE, add
from tests.monitor.test_budget_rows import counter

TENANTS, COUNTERS, BROWSERS = 1_000, 50, 100
STEERING = ("\x1b", "\u202e", "\u2066", "\x00")


async def publish(folder: Path) -> None:
    """Write the reports of a worker about all tenants."""
    feed = FileStatusFeed(folder)
    for tenant in range(TENANTS):
        found = tuple(
            counter(scope=ScopeKind.AGENT, id=f"agent-{tenant}-{n}", spent=(n * NANO // 20, 0, 0))
            for n in range(COUNTERS)
        )
        await feed.publish(told(tenant=f"tenant-{tenant}", counters=found, time=SystemClock().now()))


def grow(log: Path, first: int) -> None:
    """Add a call and a fill of each of two tenants to a log, with hostile texts."""
    records: list[Record] = []
    for n in (first, first + 1):
        of = {"tenant_id": f"tenant-{n % 2}", "trace_id": f"trace-{n % 2}-{n}"}
        texts = dict.fromkeys(("agent_id", "instructions", "raw_output", "subject"), HOSTILE)
        records.append(call(n, interaction_id=f"call-{n}", envelope_id=f"envelope-{n}", **texts, **of))
        records.append(step("order.filled", n, id=f"fill-{n}", causation_id=f"envelope-{n}", **of))
    asyncio.run(add(log, *records))


def stream(shown: RunningDashboard, stack: ExitStack) -> int:
    """Open a stream that stays open, and return its status."""
    connection = stack.enter_context(closing(HTTPConnection(urlsplit(shown.url).netloc, timeout=60)))
    connection.request("GET", "/events/budgets")
    return connection.getresponse().status


SHOWN = (
    "/calls",
    "/calls?grep=onload",
    "/trace",
    "/trace?id=fill-3",
    "/trace?id=trace-1-3",
    "/sessions",
    "/",
)
OWN = ("/calls", "/trace", "/trace?id=fill-2", "/sessions", "/", "/?tenant=tenant-1", "/metrics")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of two tenants, next to the reports about a thousand."""
    folder = tmp_path_factory.mktemp("runs") / "live"
    folder.mkdir(parents=True)
    asyncio.run(publish(folder))
    grow(folder / "interactions.jsonl", 2)
    return folder / "interactions.jsonl"


@pytest.mark.soak
@pytest.mark.timeout(300)  # the budgets of a thousand tenants are read
def test_pages_stay_with_many_tenants_and_browsers(log: Path) -> None:
    with running_dashboard(SourceOptions((log.parent.parent,))) as shown, ExitStack() as stack:
        statuses = [stream(shown, stack) for _ in range(BROWSERS)]
        for n, path in enumerate(SHOWN, start=2):
            grow(log, 2 * n)
            found = shown.get(path)
            assert found.status == 200, path
            assert found.text.count("<script") == 1
            assert "<svg onload" not in found.text
            assert not any(each in found.text for each in STEERING)

        assert statuses == [200] * MOST_STREAMS + [503] * (BROWSERS - MOST_STREAMS)


@pytest.mark.timeout(300)
def test_no_page_shows_another_tenant(log: Path) -> None:
    with running_dashboard(SourceOptions((log.parent.parent,), tenant="tenant-0")) as own:
        assert own.get("/trace?id=fill-2").status == 200
        for path in OWN:
            found = own.get(path)
            assert "tenant-1" not in found.text, path
            assert "agent-1-" not in found.text
            assert "trace-1-" not in found.text
        unknown = own.get("/trace?id=no-such-id")
        for other in ("fill-3", "call-3", "envelope-3", "trace-1-3", "trace-1-"):
            found = own.get(f"/trace?{urlencode({'id': other})}")
            assert (found.status, found.text) == (404, unknown.text.replace("no-such-id", other))
            assert own.get(f"/trace/text?id={other}&field=body").status == 404

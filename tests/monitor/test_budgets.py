"""The page of budgets over real ledgers and folders: its figures, its tenants, and sources that fail."""

import asyncio
import re
import shutil
from contextlib import aclosing
from decimal import Decimal
from html import unescape
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agentic_trading.clock import SystemClock
from agentic_trading.governance.commands import AddHalt, RemoveHalt
from agentic_trading.governance.control_stores.redis import RedisStatusFeed
from agentic_trading.governance.controls_document import HaltScope
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import FileStatusFeed
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.monitor.budget_rows import short_usd
from agentic_trading.monitor.sources import SourceOptions
from agentic_trading.operate.budgets import BudgetLocationOptions, BudgetView, read_status
from agentic_trading.platform import local_gateway
from agentic_trading.platform.metrics import FIGURES
from tests.governance.reporting import told
from tests.monitor.conftest import RunningDashboard, StartDashboard
from tests.monitor.fleet import Fleet, question
from tests.monitor.test_budget_rows import counter as made_counter
from tests.redis_server import own_server, servers

pytestmark = pytest.mark.timeout(120)  # servers and workers are started


def text_of(html: str) -> str:
    """Return the words of a page."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def section_of(html: str, title: str) -> str:
    """Return the words of the section with a title."""
    found = [
        part
        for part in html.split("<section>")
        if f"<caption>{title}<" in part or f"<caption>{title} <" in part
    ]
    assert len(found) == 1
    return text_of(found[0])


def read(fleet: Fleet, tenant: str) -> BudgetView:
    """Return a tenant's budgets as `budget show` reads them."""
    return asyncio.run(read_status(BudgetLocationOptions(None, fleet.url), tenant))


@pytest.fixture
def shown(fleet: Fleet, dashboard: StartDashboard) -> RunningDashboard:
    """Return a dashboard of the fleet."""
    return dashboard(SourceOptions((fleet.folder,), ledger_url=fleet.url))


def test_page_has_the_amounts_of_budget_show(fleet: Fleet, shown: RunningDashboard) -> None:
    html = shown.get("/").text

    for tenant in ("alpha", "beta", "gamma"):
        words = section_of(html, tenant)
        for counter in read(fleet, tenant).counters:
            for unit, spent in enumerate(counter.spent):
                if counter.most[unit] is not None:
                    assert (short_usd(spent) if unit == 0 else f"{spent:,}") in words
    assert "3 tenants · 2 workers report" in text_of(html)


def test_states_have_banners_and_signs(shown: RunningDashboard) -> None:
    words = text_of(shown.get("/").text)

    assert "Halted: agent planner of gamma, by risk-desk at" in words
    assert ": plans contradict the risk desk" in words
    assert (
        "Limit reached: beta · agent executor, day: 4 of 4 calls used. New calls in it are refused." in words
    )
    assert "■ used up" in words
    # After a full hour, limits of an hour come before it.
    _, _, pending = words.partition("Set, not counted yet: ")
    assert "workflow planning per day: 100 calls" in pending


def test_figures_are_sums_of_tenant_counters(fleet: Fleet, dashboard: StartDashboard) -> None:
    fleet.hold("gamma")
    words = text_of(dashboard(SourceOptions(ledger_url=fleet.url)).get("/").text)

    views = [read(fleet, tenant) for tenant in ("alpha", "beta", "gamma")]
    days = [next(c for c in view.counters if (c.scope, c.window) == ("tenant", Window.DAY)) for view in views]
    spent, held, in_doubt = (sum(getattr(c, name)[0] for c in days) for name in ("spent", "held", "in_doubt"))
    assert held > 0
    assert in_doubt > 0
    assert f"spent {short_usd(spent)} USD, of 3 counters per day" in words
    assert f"held by calls in flight {short_usd(held)} USD" in words
    assert f"in doubt, charged in full {short_usd(in_doubt)} USD" in words


def test_refusal_links_to_its_call(shown: RunningDashboard) -> None:
    html = shown.get("/").text
    row = next(line for line in html.splitlines() if "executor" in line and "budget_exhausted" in line)

    assert '<td class="n" data-name="times">3</td>' in row
    assert re.search(r'href="/calls\?envelope=[0-9a-f-]{36}"', row)


def test_ledger_alone_has_no_links_to_calls(fleet: Fleet, dashboard: StartDashboard) -> None:
    html = dashboard(SourceOptions(ledger_url=fleet.url)).get("/").text

    assert "budget_exhausted" in html
    assert "/calls?envelope" not in html


def test_worker_calls_are_those_of_its_reports(fleet: Fleet, shown: RunningDashboard) -> None:
    def has_all(part: str) -> bool:
        words = re.sub(r"\d+ s ago", "", text_of(part))
        return all(
            f"{status.worker} ✓ runs {status.calls.admitted:,} {status.calls.refused:,}"
            in " ".join(words.split())
            for status in read(fleet, "alpha").workers
        )

    assert has_all(shown.events("/events/budgets", has_all)[-1])


def test_metrics_are_those_of_the_worker(fleet: Fleet, shown: RunningDashboard) -> None:
    text = shown.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}

    assert set(families) <= set(FIGURES)
    assert "agentic_budget_refused" not in families
    spent = {
        (s.labels["tenant"], s.labels["scope"], s.labels["id"], s.labels["window"]): s.value
        for s in families["agentic_budget_spent_usd"].samples
    }
    for tenant in ("alpha", "beta", "gamma"):
        for counter in read(fleet, tenant).counters:
            if counter.most[0] is not None:
                assert spent[tenant, counter.scope, counter.id, counter.window] == counter.spent[0] / NANO
    halts = {tuple(s.labels.values()): s.value for s in families["agentic_halts"].samples}
    assert (halts["gamma", "agent"], halts["*", "agent"], halts["alpha", "agent"]) == (1, 0, 0)
    assert {s.value for s in families["agentic_workers_reporting"].samples} == {2}


def test_one_tenant_is_shown_alone(fleet: Fleet, dashboard: StartDashboard) -> None:
    shown = dashboard(SourceOptions((fleet.folder,), ledger_url=fleet.url, tenant="beta"))
    html = shown.get("/").text + shown.get("/metrics").text

    assert section_of(shown.get("/").text, "beta")
    for other in ("alpha", "gamma", "planner", "contradict", "helper"):
        assert other not in html
    # The calls of a worker are those of all tenants.
    assert "admitted" not in html
    assert shown.get("/?tenant=beta").status == 200


@pytest.mark.parametrize("path", ["/", "/events/budgets"])
def test_other_tenant_is_as_unknown_as_a_wrong_one(
    path: str, fleet: Fleet, dashboard: StartDashboard
) -> None:
    shown = dashboard(SourceOptions(ledger_url=fleet.url, tenant="beta"))
    other, wrong = shown.get(f"{path}?tenant=alpha"), shown.get(f"{path}?tenant=nobody")

    assert (other.status, other.text) == (wrong.status, wrong.text)
    assert other.status == 404


def test_query_chooses_a_tenant(shown: RunningDashboard) -> None:
    html = shown.get("/?tenant=gamma").text

    assert section_of(html, "gamma")
    assert "alpha" not in html
    assert "All tenants" in html


def test_halt_of_all_tenants_is_shown_once(fleet: Fleet, shown: RunningDashboard) -> None:
    fleet.order("*", AddHalt(HaltScope.MODEL, "scripted/other"), "test <b>")
    try:
        html = shown.get("/").text
    finally:
        fleet.order("*", RemoveHalt(HaltScope.MODEL, "scripted/other"))

    assert text_of(html).count("Halted: model scripted/other of every tenant") <= 1
    assert "<b>" not in html


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """Return a folder with two sessions of a gateway in one process."""

    async def ask(folder: Path) -> None:
        provider = ScriptedProvider(lambda _request: "{}")
        async with local_gateway(provider, budget_usd=Decimal(2), folder=folder) as gateway:
            for n in range(3):
                await gateway.ask(question(n, "default", "a"))

    for name in ("first", "second"):
        asyncio.run(ask(tmp_path / "runs" / name))
    return tmp_path / "runs"


def test_folder_has_a_table_for_each_session(session: Path, dashboard: StartDashboard) -> None:
    html = dashboard(SourceOptions((session,))).get("/").text

    for name in ("first", "second"):
        words = section_of(html, f"{name} · default")
        view = asyncio.run(read_status(BudgetLocationOptions(session / name), "default"))
        assert short_usd(view.counters[0].spent[0]) in words
        assert "no worker runs" in words
    assert str(session) not in html


def test_folder_without_sessions_is_read(dashboard: StartDashboard, tmp_path: Path) -> None:
    text = text_of(dashboard(SourceOptions((tmp_path,))).get("/").text)

    assert "No worker has reported a budget" in text
    assert "not complete" not in text
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)


def test_new_session_appears(session: Path, dashboard: StartDashboard) -> None:
    copy = Path(shutil.copytree(session / "first", session.with_name("copy")))  # before its index is written
    shown = dashboard(SourceOptions((session,)))
    assert "third" not in shown.get("/").text
    copy.rename(session / "third")

    parts = shown.events("/events/budgets", lambda part: "third · default" in part)

    assert "third · default" in parts[-1]


def test_vanished_session_is_a_banner(session: Path, dashboard: StartDashboard, tmp_path: Path) -> None:
    shown = dashboard(SourceOptions((session,)))
    assert "is gone" not in shown.get("/").text
    (session / "second").rename(tmp_path / "elsewhere")  # at once, because the index is written there

    parts = shown.events("/events/budgets", lambda part: "is gone" in part)

    assert "The log of second is gone." in parts[-1]
    assert shown.get("/").status == 200


def test_server_that_goes_away_is_a_banner_and_its_figures_stay(dashboard: StartDashboard) -> None:
    with own_server(next((each for each in servers() if each != "given"), "valkey")) as server:
        shown = dashboard(SourceOptions(ledger_url=server.url, tenant="acme"))
        assert section_of(shown.get("/").text, "acme")
        server.kill()

        parts = shown.events("/events/budgets", lambda part: "cannot be read now" in part)

        assert section_of(parts[-1], "acme")
        assert shown.get("/").status == 503
        assert shown.get("/metrics").status == 503
        server.start()
        shown.events("/events/budgets", lambda part: "cannot be read now" not in part)
        assert shown.get("/").status == 200


async def reported(url: str) -> None:
    """Report the tenant acme to a server, as a worker does."""
    async with aclosing(await asyncio.to_thread(RedisStatusFeed, url)) as feed:
        await feed.publish(told())


def test_server_of_all_tenants_that_goes_away_is_a_banner_and_its_figures_stay(
    dashboard: StartDashboard,
) -> None:
    with own_server(next((each for each in servers() if each != "given"), "valkey")) as server:
        asyncio.run(reported(server.url))
        shown = dashboard(SourceOptions(ledger_url=server.url))
        assert section_of(shown.get("/").text, "acme")
        server.kill()

        parts = shown.events("/events/budgets", lambda part: "cannot be read now" in part)

        assert section_of(parts[-1], "acme")
        assert shown.get("/metrics").status == 503


def test_server_that_is_away_from_the_start_is_a_banner(dashboard: StartDashboard) -> None:
    shown = dashboard(SourceOptions(ledger_url="redis://127.0.0.1:1"))

    parts = shown.events("/events/budgets", lambda part: "cannot be read now" in part)

    assert "cannot be read now" in parts[-1]
    assert shown.get("/").status == 503
    assert shown.get("/metrics").status == 503


def test_many_tenants_are_folded_but_can_be_opened(session: Path, dashboard: StartDashboard) -> None:
    folder = session / "first"
    for n in range(150):
        full = made_counter(id=f"t-{n}", spent=(n * NANO // 20, 0, 0), held=(0, 0, 0), in_doubt=(0, 0, 0))
        report = told(tenant=f"t-{n}", counters=(full,), time=SystemClock().now())
        asyncio.run(FileStatusFeed(folder).publish(report))
    shown = dashboard(SourceOptions((folder,)))
    html = shown.get("/").text

    assert html.count('<table class="counters">') == 30
    assert section_of(html, "t-149")
    assert "121 more tenants, the fullest first" in html
    assert "21 tenants are not listed. Open one by its name." in html
    assert section_of(shown.get("/?tenant=t-0").text, "t-0")


def test_counters_beyond_the_share_of_a_tenant_are_counted(session: Path, dashboard: StartDashboard) -> None:
    agents = [made_counter(scope=ScopeKind.AGENT, id=f"a-{n}", held=(0, 0, 0)) for n in range(400)]
    report = told(tenant="wide", counters=tuple(agents), time=SystemClock().now())
    asyncio.run(FileStatusFeed(session / "first").publish(report))

    words = text_of(dashboard(SourceOptions((session / "first",), tenant="wide")).get("/").text)

    assert "100 counters are not shown here." in words

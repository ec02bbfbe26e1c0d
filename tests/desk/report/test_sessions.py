"""The dashboard page Sessions: the runs of a folder, and the report of each."""

import shutil
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from re import search

import orjson
import pytest

from agentic_trading.clock import SystemClock
from agentic_trading.desk.inference import rate_for
from agentic_trading.desk.report import sessions
from agentic_trading.desk.report.assumptions import ReportTerms, assumption_rows
from agentic_trading.desk.report.figures import round_trips
from agentic_trading.desk.report.record import RunOnRecord
from agentic_trading.desk.session.report import RunReport
from agentic_trading.monitor.page import NotShownError, PageRequest
from agentic_trading.monitor.sources import SourceOptions, open_sources
from tests.desk.report.recorded import page_html
from tests.monitor.conftest import RunningDashboard, running_dashboard

pytestmark = pytest.mark.timeout(180)  # whole sessions are run


@pytest.fixture(scope="module")
def folder_of_all(reports: dict[str, RunReport]) -> Path:
    """Return the folder of the sessions."""
    [folder] = {report.log.parent.parent for report in reports.values()}
    return folder


@pytest.fixture(scope="module")
def shown(folder_of_all: Path) -> Iterator[RunningDashboard]:
    """Return a dashboard of the sessions."""
    with running_dashboard(SourceOptions((folder_of_all,))) as dashboard:
        yield dashboard


def copy_run(run: RunOnRecord, folder: Path) -> None:
    """Copy the folder of a run without its index, which another reader may write meanwhile."""
    shutil.copytree(run.folder.path, folder, ignore=shutil.ignore_patterns("*.index.*"))


async def page_of(*stores: Path, tenant: str | None = None) -> sessions.SessionsView:
    """Return the page after as many reloads as it asks for."""
    async with open_sources(SourceOptions(stores, tenant=tenant)) as sources:
        view = sessions.SessionsPage(sources)
        page = await view.page()
        while "Reload" in page.note:
            page = await view.page()
        return page


async def test_rows_have_the_figures_of_the_reports(
    reports: dict[str, RunReport], runs: dict[str, RunOnRecord], folder_of_all: Path
) -> None:
    page = await page_of(folder_of_all)

    rows = {row.name: row for row in page.rows}
    assert list(rows) == [*reversed(reports)]
    assert page.note == "4 runs, newest first."
    for name, report in reports.items():
        run, row = runs[name], rows[name]
        terms = ReportTerms(rate_for(run.currency))
        assert row.pnl == f"{report.pnl:+,.2f} {run.currency}"
        assert row.tone == ("good" if report.pnl > 0 else "bad")
        assert row.digest == str(run.manifest.digest)[:12]
        assert row.out_of_sample == next(iter(assumption_rows(run, round_trips(run), terms))).value
        assert row.state == "ended"
    assert rows["faults"].cost == f"{reports['faults'].cost_nusd / 10**9:.6f}"
    assert rows["recorded"].model == "local/smollm2-135m"
    assert rows["portfolio"].data == "sp500-sample, 50 symbols"
    assert rows["two symbols"].href == "/sessions/two%20symbols/1"


def test_report_is_that_of_the_command(
    shown: RunningDashboard, faulty: RunOnRecord, folder_of_all: Path
) -> None:
    found = shown.get("/sessions/faults/1")

    assert found.text == page_html(faulty).replace(str(faulty.folder.path), "faults")
    assert str(folder_of_all) not in found.text


def test_report_is_served_with_the_hash_of_its_style(shown: RunningDashboard) -> None:
    found = shown.get("/sessions/two%20symbols")

    style = search("(?s)<style>(.*?)</style>", found.text)
    assert style is not None
    digest = b64encode(sha256(style[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in found.headers["Content-Security-Policy"]
    assert "script-src" not in found.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "path", ["/sessions/none", "/sessions/faults/2", "/sessions/faults/x", "/sessions/..%2ffaults"]
)
def test_unknown_run_is_not_found(path: str, shown: RunningDashboard) -> None:
    assert shown.get(path).status == 404


async def test_run_of_another_tenant_is_not_shown(folder_of_all: Path) -> None:
    async with open_sources(SourceOptions((folder_of_all,), tenant="other")) as sources:
        view = sessions.SessionsPage(sources)
        page = await view.page()
        with pytest.raises(NotShownError):
            await view.answer(PageRequest("/sessions/{name}", {"name": "faults"}))

    assert (page.rows, page.problems) == ((), ())
    assert page.note == "No run of a session is in these folders."


async def test_page_reads_one_run_at_least(folder_of_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "READ_WITHIN_S", 0.0)

    async with open_sources(SourceOptions((folder_of_all,))) as sources:
        view = sessions.SessionsPage(sources, clock=SystemClock())
        read = [sum(row.pnl != "-" for row in (await view.page()).rows) for _ in range(5)]
        page = await view.page()

    assert read == [1, 2, 3, 4, 4]
    assert "Reload" not in page.note


def changed_manifest(folder: Path, **changes: object) -> None:
    path = folder / "run.json"
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **changes}))


async def test_running_session_has_no_result(faulty: RunOnRecord, tmp_path: Path) -> None:
    copy_run(faulty, tmp_path / "running")
    changed_manifest(tmp_path / "running", digest=None)

    [row] = (await page_of(tmp_path)).rows

    assert (row.state, row.pnl, row.digest) == ("not ended", "-", "-")


async def test_damaged_session_leaves_the_others(faulty: RunOnRecord, tmp_path: Path) -> None:
    for name in ("a whole", "no bars", "no manifest"):
        copy_run(faulty, tmp_path / name)
    next((tmp_path / "no bars").glob("bars-*.csv")).unlink()
    (tmp_path / "no manifest" / "run.json").write_text("{}")

    page = await page_of(tmp_path)
    limited = await page_of(tmp_path, tenant="default")

    figures = {row.name: row.pnl for row in page.rows}
    assert figures == {"a whole": f"{faulty.report.pnl:+,.2f} USDT", "no bars": "-"}
    assert len(page.problems) == 2
    assert not any(str(tmp_path) in problem for problem in (*page.problems, *limited.problems))


async def test_run_whose_record_is_cut_off_has_no_figures_until_it_is_whole(
    faulty: RunOnRecord, tmp_path: Path
) -> None:
    copy_run(faulty, tmp_path / "copied")
    log = tmp_path / "copied" / faulty.folder.log.name
    whole = log.read_bytes()
    log.write_bytes(whole[: whole.index(b"\n", len(whole) // 2) + 1])

    async with open_sources(SourceOptions((tmp_path,))) as sources:
        view = sessions.SessionsPage(sources)
        cut = await view.page()
        log.write_bytes(whole)
        copied = await view.page()

    assert [(row.state, row.pnl, row.cost) for row in cut.rows] == [("ended", "-", "-")]
    assert cut.problems == ("The record of copied is cut off. The report of run 1 has what is left of it",)
    assert [row.pnl for row in copied.rows] == [f"{faulty.report.pnl:+,.2f} USDT"]
    assert copied.problems == ()


async def test_damaged_run_is_read_after_the_others(
    faulty: RunOnRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "READ_WITHIN_S", 0.0)
    for name, started in (("newer", "2026-11-02T00:00:00Z"), ("older", "2026-11-01T00:00:00Z")):
        copy_run(faulty, tmp_path / name)
        changed_manifest(tmp_path / name, started_at=started)
    next((tmp_path / "newer").glob("bars-*.csv")).unlink()

    async with open_sources(SourceOptions((tmp_path,))) as sources:
        view = sessions.SessionsPage(sources)
        await view.page()
        page = await view.page()

    assert [(row.name, row.pnl == "-") for row in page.rows] == [("newer", True), ("older", False)]


async def test_log_without_a_session_has_no_row(faulty: RunOnRecord, tmp_path: Path) -> None:
    shutil.copy(faulty.folder.log, tmp_path / "other.jsonl")

    assert (await page_of(tmp_path / "other.jsonl")).rows == ()

"""The page has the figures of the report, escapes every text, and needs no other file."""

import asyncio
import base64
import hashlib
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from agentic_trading.desk.inference import InferenceRate
from agentic_trading.desk.metrics import returns_of, sharpe_ratio
from agentic_trading.desk.report.assumptions import ReportTerms, skill_after
from agentic_trading.desk.report.figures import net_equity
from agentic_trading.desk.report.page import MOST_TRIPS, SessionPage, page_of
from agentic_trading.desk.report.record import RunOnRecord, read_run
from agentic_trading.desk.session.report import RunReport
from agentic_trading.operate.session_folder import SessionFolder
from tests.desk.report.recorded import page_html
from tests.desk.report.test_figures import filled

pytestmark = pytest.mark.timeout(180)  # whole sessions are run, one of 50 stocks

HOSTILE = '"><script>alert(1)</script><svg onload="alert(2)">{{ 7*7 }}'


class Tags(HTMLParser):
    """The elements of a page and their attributes, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def view(run: RunOnRecord, **terms: object) -> SessionPage:
    """Return the views of a page, at a rate of 1."""
    return page_of(run, replace(ReportTerms(InferenceRate(run.currency, Decimal(1))), **terms))  # type: ignore[arg-type]


def tiles(page: SessionPage) -> dict[str, tuple[str, str]]:
    return {tile.name: (tile.value, tile.note) for tile in page.tiles}


def rows(page: SessionPage) -> dict[str, tuple[str, str]]:
    return {row.name: (row.value, row.text) for row in page.assumptions}


@pytest.mark.parametrize("name", ["recorded", "faults", "two symbols", "portfolio"])
def test_page_shows_figures_of_report(
    name: str, reports: dict[str, RunReport], runs: dict[str, RunOnRecord]
) -> None:
    report, page = reports[name], view(runs[name])

    shown = tiles(page)
    assert shown["P&L after fees"][0] == f"{report.pnl:+,.2f}"
    assert shown["buy and hold"][0] == f"{report.buy_and_hold_pnl:+,.2f}"
    assert shown["fees"][0] == f"{report.fees:,.2f}"
    assert report.performance is not None
    assert shown["largest drawdown"][0] == f"{report.performance.max_drawdown:.2%}"
    counts = {table.name: {bar.name: bar.value for bar in table.bars} for table in page.decisions}
    for workflow, verdicts in report.decisions.items():
        expected = {verdict.replace("_", " "): f"{n:,}" for verdict, n in verdicts.items()}
        assert counts[f"Decisions, {workflow}"] == expected
    missing = sum(n for reasons in report.no_decisions.values() for n in reasons.values())
    assert sum(int(n) for n in counts["No decision, by reason"].values()) == missing
    assert page.record[0].text == f"sha256:{report.digest}"
    total = sum(Decimal(row.pnl.replace(",", "")) for row in page.days)
    assert total == pytest.approx(report.pnl, abs=Decimal("0.01") * len(page.days))


@pytest.mark.parametrize(
    ("name", "charts", "has_narrow", "has_months"),
    [("faults", 1, True, False), ("two symbols", 2, True, False), ("portfolio", 50, False, True)],
)
def test_symbols_have_charts(
    name: str,
    charts: int,
    *,
    has_narrow: bool,
    has_months: bool,
    runs: dict[str, RunOnRecord],
) -> None:
    page = view(runs[name])

    assert len(page.prices) == charts
    assert {price.narrow is not None for price in page.prices} == {has_narrow}
    assert bool(page.months) == has_months
    assert len(page.plans) == len(runs[name].report.plans)
    assert len(page.legend) == {"portfolio": 2, "two symbols": 3, "faults": 4}[name]


def test_second_page_has_equal_bytes(folder: Path) -> None:
    first, second = (page_html(asyncio.run(read_run(folder))) for _ in range(2))

    assert first == second


def test_policy_allows_only_the_own_style(faulty: RunOnRecord) -> None:
    html = page_html(faulty)

    [style] = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'" in html


@pytest.mark.parametrize("name", ["recorded", "faults", "two symbols", "portfolio"])
def test_page_names_no_address(name: str, runs: dict[str, RunOnRecord]) -> None:
    html = page_html(runs[name])

    assert re.findall(r"https?:|//|url\(|@import", html) == []
    tags = Tags(html)
    assert tags.tags["script"] == tags.tags["img"] == tags.tags["link"] == 0
    assert tags.attributes & {"src", "style", "srcset"} == set()
    assert [href for href in re.findall(r'href="([^"]*)"', html) if not href.startswith("#")] == []


def test_hostile_text_is_escaped(folder: Path, tmp_path: Path, faulty: RunOnRecord) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "hostile"))
    path = SessionFolder(copy).manifest(1)
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields |= {"seed": HOSTILE, "model": HOSTILE, "package": HOSTILE, "config_sha256": HOSTILE}
    path.write_text(json.dumps(fields), encoding="utf-8")
    run = asyncio.run(read_run(copy))
    decisions = [replace(each, verdict=HOSTILE, reason=HOSTILE) for each in run.decisions]
    attempts = [replace(each, price_book=HOSTILE, workflow=HOSTILE) for each in run.attempts]

    plain = Tags(page_html(faulty))
    hostile = Tags(page_html(replace(run, decisions=decisions, attempts=attempts)))

    assert hostile.tags["script"] == 0
    assert hostile.attributes == plain.attributes
    assert "{{ 7*7 }}" in hostile.text
    assert "<script>alert(1)</script>" in hostile.text


def test_net_pnl_has_its_rate(faulty: RunOnRecord) -> None:
    cost = Decimal(faulty.report.cost_nusd) / 10**9

    page = view(faulty, rate=InferenceRate("USDT", Decimal("0.5")))

    assert cost > Decimal("0.1")
    assert tiles(page)["cost of inference"] == (f"{cost:,.6f}", "USD")
    net = f"{faulty.report.pnl - cost / 2:+,.2f}"
    assert tiles(page)["P&L net of inference"] == (net, "USDT, at 1 USD = 0.5 USDT")
    assert rows(page)["exchange rate"][0] == "1 USD = 0.5 USDT"


def test_page_shows_equity_and_sharpe_net_of_inference(faulty: RunOnRecord) -> None:
    net = net_equity(faulty, InferenceRate("USDT", Decimal(1)))
    report, page = faulty.report, view(faulty)

    assert report.net_performance is not None
    assert report.year is not None
    assert net[-1] == report.equity_start + (report.net_pnl or 0)
    assert net[0] == faulty.points[0].equity
    curve = [float(each) for each in (report.equity_start, *net)]
    a_year = report.year.sessions * report.year.bars_per_session
    assert report.net_performance.sharpe == pytest.approx(
        sharpe_ratio(returns_of(curve), bars_per_year=a_year)
    )
    assert ("net", f"net of inference, {net[-1]:,.2f}") in page.legend
    assert f"Net of inference, it ends at {net[-1]:,.2f}." in page.equity[0].name
    assert rows(page)["length"][1].endswith(f"Net of inference it is {report.net_performance.sharpe:.2f}.")


def test_free_calls_have_no_net_curve(faulty: RunOnRecord) -> None:
    free = replace(faulty, attempts=[replace(each, first_cost_nusd=0) for each in faulty.attempts])

    assert net_equity(free, InferenceRate("USDT", Decimal(1))) == []
    assert [kind for kind, _ in view(free).legend] == ["session", "held", "market"]


def test_unknown_rate_hides_net_pnl(faulty: RunOnRecord) -> None:
    page = view(replace(faulty, currency="EUR"), rate=None)

    value, note = tiles(page)["P&L net of inference"]
    assert value == "-"
    assert note == "not shown: P&L is in EUR. Pass --inference-rate USDEUR=RATE"
    assert rows(page)["exchange rate"][0] == "unknown"


def test_dollars_need_no_rate(faulty: RunOnRecord) -> None:
    page = view(replace(faulty, currency="USD"))

    assert tiles(page)["P&L net of inference"][1] == "USD"
    assert rows(page)["exchange rate"][0] == "none needed"


def test_recorded_answers_count_with_first_cost(faulty: RunOnRecord) -> None:
    attempts = [replace(each, cost_nusd=0) for each in faulty.attempts]
    report = faulty.report.model_copy(update={"cost_nusd": 0})

    again = tiles(view(replace(faulty, attempts=attempts, report=report)))

    first = tiles(view(faulty))
    assert again["P&L net of inference"] == first["P&L net of inference"]
    assert again["cost of inference"][0] == first["cost of inference"][0]
    assert again["cost of inference"][1] == "USD, of the recorded calls. This run paid 0.000000"


def test_trips_show_inference_and_command(faulty: RunOnRecord) -> None:
    page = view(faulty)

    first = faulty.fills[0]
    assert page.trips[0].why == (
        f"agentic-trading trace why {first.event_id[:8]} --store {faulty.folder.path}"
    )
    caused = sum(each.cost_nusd for each in faulty.attempts if each.trace_id == first.fill.trace_id)
    assert page.trips[0].inference == f"{Decimal(caused) / 10**9:.6f}"
    assert caused > 0
    assert [trip.closed for trip in page.trips].count("still open") == len(faulty.report.open_positions)


def test_many_trips_are_cut_with_a_note(faulty: RunOnRecord) -> None:
    fills = [filled(n, "-1" if n % 2 else "1", "100") for n in range(2 * MOST_TRIPS + 4)]

    page = view(replace(faulty, fills=fills))

    assert len(page.trips) == MOST_TRIPS
    assert page.trips_note.startswith(f"The first {MOST_TRIPS} of {MOST_TRIPS + 2}. ")


def test_run_without_trades_has_a_page(faulty: RunOnRecord) -> None:
    result = replace(faulty.result, fills=[])
    empty = replace(faulty, fills=[], decisions=[], attempts=[], result=result, points=faulty.points[:1])

    page = view(empty)

    assert (page.trips, tiles(page)["inference per round trip"][0]) == ((), "-")
    assert "0 round trips." in page_html(empty)
    assert {fact.name: fact.text for fact in page.facts}["latency"] == "-"


def test_run_without_bars_has_a_page(folder: Path, tmp_path: Path) -> None:
    killed = Path(shutil.copytree(folder, tmp_path / "killed"))
    log = SessionFolder(killed).log
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:2]))
    run = asyncio.run(read_run(killed))

    page = view(run)

    assert (page.equity, page.prices, page.days) == ((), (), ())
    assert rows(page)["length"][0] == "0 bars"
    assert page.warnings[0].startswith("The record is cut off. interactions.jsonl, line 2: ")
    assert page.warnings[0].endswith("lines behind this one are cut off.")
    assert page.warnings[1].startswith("The page shows the run up to - UTC")
    assert "<h2>Equity, " not in page_html(run)


def test_trials_deflate_the_sharpe_ratio(faulty: RunOnRecord) -> None:
    one, many = (skill_after(faulty, trials) for trials in (1, 100))

    assert one is not None
    assert many is not None
    assert many < one
    assert rows(view(faulty))["trials"][0] == "1 of unknown"
    value, text = rows(view(faulty, trials=100))["trials"]
    assert value == "1 of 100"
    assert text.startswith(f"Deflated Sharpe ratio {many:.3f}: ")


def test_flat_equity_has_no_deflated_sharpe(faulty: RunOnRecord) -> None:
    flat = replace(faulty, points=[replace(each, equity=Decimal(100_000)) for each in faulty.points])
    ruined = replace(faulty, points=[replace(each, equity=Decimal(-1)) for each in faulty.points])

    assert skill_after(flat, 10) is skill_after(ruined, 10) is None
    assert rows(view(flat, trials=10))["trials"][1].startswith("Deflated Sharpe ratio -: ")


@pytest.mark.parametrize(
    ("provider", "knowledge", "claim", "sample"),
    [
        ("rules", {}, "The bars ship with the package", "no"),
        ("openai", {"post_cutoff": 4}, "The period is after the training cutoff", "yes"),
        ("openai", {"post_cutoff": 4, "in_sample": 1}, "The model may have seen this period", "no"),
        ("openai", {"unknown": 4}, "The model may have seen this period", "unknown"),
        ("openai", {}, "The model may have seen this period", "unknown"),
    ],
)
def test_card_has_origin_of_sample(
    provider: str, knowledge: dict[str, int], claim: str, sample: str, faulty: RunOnRecord
) -> None:
    report = faulty.report.model_copy(update={"provider": provider, "knowledge": knowledge})

    page = view(replace(faulty, report=report))

    assert page.claim.startswith(claim)
    assert rows(page)["out of sample"][0] == sample


def test_own_bars_are_of_unknown_sample(faulty: RunOnRecord) -> None:
    data = [each.model_copy(update={"is_sample": False}) for each in faulty.report.data]

    page = view(replace(faulty, report=faulty.report.model_copy(update={"data": data, "model": ""})))

    assert rows(page)["out of sample"] == ("unknown", "The bars are your own data.")
    assert page.claim == "The bars are your own data. This is one run of one period."
    assert page.title == "BTCUSDT · rules"


def test_unfinished_run_has_other_commands(faulty: RunOnRecord) -> None:
    manifest = faulty.manifest.model_copy(update={"digest": None, "interrupted": True, "config_sha256": ""})
    report = faulty.report.model_copy(update={"run_number": 2})

    page = view(replace(faulty, manifest=manifest, report=report))

    assert page.commands[0].text.endswith(" --run 2 --allow-incomplete")
    assert page.record[0].text == "none, because the run has not ended"
    assert page.warnings[0] == "The run has not ended."
    assert page.warnings[-1] == "The run was interrupted. The page shows it up to its last closed bar."


def test_commands_quote_their_folder(faulty: RunOnRecord) -> None:
    page = view(replace(faulty, folder=SessionFolder(Path("a b;c"))))

    assert page.trips[0].why.endswith(" --store 'a b;c'")
    assert [command.text for command in page.commands] == [
        "agentic-trading replay run 'a b;c'",
        "agentic-trading audit verify 'a b;c'",
    ]


def test_page_of_an_own_agent_names_it(faulty: RunOnRecord) -> None:
    report = faulty.report.model_copy(update={"agent": "breakout:Breakout", "provider": "rules"})
    page = view(replace(faulty, report=report))

    assert page.commands[0].text.endswith(" --agent breakout:Breakout")
    assert rows(page)["out of sample"] == ("unknown", "The rules are those of your own agent.")
    assert page.claim == "The rules are those of your own agent. This is one run of one period."


def test_cheap_calls_have_a_visible_cost(faulty: RunOnRecord) -> None:
    attempts = [replace(each, first_cost_nusd=3_000) for each in faulty.attempts]

    page = view(replace(faulty, attempts=attempts))

    assert tiles(page)["cost of inference"][0] == f"{len(attempts) * Decimal('0.000003'):.6f}"
    assert Decimal(page.trips[0].inference) >= Decimal("0.000003")


def test_latency_names_its_quantiles(faulty: RunOnRecord) -> None:
    attempts = [replace(each, sent=True, latency_ms=n) for n, each in enumerate(faulty.attempts[:21])]

    facts = {fact.name: fact.text for fact in view(replace(faulty, attempts=attempts)).facts}

    assert facts["latency"] == "median 10 ms, 95 % within 19 ms, 99 % within 19 ms"


@pytest.mark.parametrize("name", ["recorded", "faults", "two symbols", "portfolio"])
def test_money_has_its_currency(name: str, runs: dict[str, RunOnRecord]) -> None:
    run = runs[name]

    html = page_html(run)

    for heading in ("Equity", "Price"):
        assert f"<h2>{heading}, {run.currency}</h2>" in html
    assert html.count(f'class="n">P&amp;L, {run.currency}</th>') >= 2
    assert 'class="n">P&amp;L</th>' not in html
    titles = re.findall(r"<title>(.*?)</title>", html)[1:]
    assert titles
    assert [
        each for each in titles if ("fee " in each or "P&amp;L" in each) and run.currency not in each
    ] == []


@pytest.mark.parametrize("name", ["recorded", "faults", "two symbols", "portfolio"])
def test_page_has_no_markdown(name: str, runs: dict[str, RunOnRecord]) -> None:
    assert "`" not in page_html(replace(runs[name], currency="EUR"), ReportTerms())


def test_undated_decisions_are_not_drawn(faulty: RunOnRecord) -> None:
    undated = [replace(each, as_of=None) for each in faulty.decisions]
    later = [
        replace(each, as_of=each.as_of + timedelta(0), verdict="other")
        for each in faulty.decisions
        if each.as_of
    ]

    shapes = [
        {shape.kind for shape in view(replace(faulty, decisions=some)).prices[0].wide.shapes}
        for some in (undated, later)
    ]

    assert {kind for kind in shapes[0] if kind.startswith("tick-")} == set()
    assert {kind for kind in shapes[1] if kind.startswith("tick-")} == {"tick-aside"}

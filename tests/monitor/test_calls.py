"""The page Calls: filters, pages and texts."""

from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.limits import NANO
from agentic_trading.monitor.calls import ROWS, SEARCHED, CallsView
from agentic_trading.monitor.sources import SourceOptions
from agentic_trading.platform.errors import OptionError
from tests.audit.reading import REFUSAL, call, desk, step
from tests.llm.stores.jsonl_logs import change_line
from tests.monitor.conftest import StartDashboard
from tests.monitor.record_pages import HOSTILE, LEGIBLE, add, calls_page, in_thread

ALL = ["bank analyst", "bank trader", "bank analyst", "fund analyst", "fund trader", "fund analyst"]


@pytest.fixture
async def log(tmp_path: Path) -> Path:
    """Return a log with the calls of two tenants."""
    return await add(tmp_path / "live" / "interactions.jsonl", *desk("fund"), *desk("bank"))


def query_of(address: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(address).query))


async def every_page(*stores: Path, **filters: str) -> list[CallsView]:
    """Return all pages, by following the link to older ones."""
    pages = [await calls_page(*stores, **filters)]
    while pages[-1].older:
        pages.append(await calls_page(*stores, **query_of(pages[-1].older)))
    return pages


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ALL),
        ({"tenant": "fund"}, ["fund analyst", "fund trader", "fund analyst"]),
        ({"tenant": "fund,bank", "agent": "trader"}, ["bank trader", "fund trader"]),
        ({"workflow": "execution"}, ["bank trader", "fund trader"]),
        ({"provider": "openai"}, ["bank trader", "fund trader"]),
        ({"model": "m-1"}, ["bank analyst", "fund analyst"]),
        ({"subject": "BTCUSDT"}, ["bank analyst", "fund analyst"]),
        ({"failure": "budget_exhausted"}, ["bank trader", "fund trader"]),
        ({"failure": "*"}, ["bank trader", "fund trader"]),
        ({"failure": "accepted", "tenant": "bank"}, ["bank analyst", "bank analyst"]),
        ({"envelope": "envelope-fund"}, ["fund analyst"]),
        ({"envelope": "envelope-f"}, ["fund analyst"]),
        ({"envelope": "no-such-envelope"}, []),
        ({"trace": "chain-of-bank"}, ["bank analyst"]),
        ({"grep": "“stop”"}, ["bank analyst", "fund analyst"]),
        ({"grep": "Judge the market"}, ALL),
        ({"grep": "no such words"}, []),
        ({"since": "2026-01-02T00:02"}, ["bank analyst", "bank trader", "fund analyst", "fund trader"]),
        ({"until": "2026-01-02T00:02"}, ["bank analyst", "fund analyst"]),
        ({"agent": HOSTILE}, []),
    ],
    ids=str,
)
async def test_filters_select_attempts(filters: dict[str, str], found: list[str], log: Path) -> None:
    page = await calls_page(log, **filters)

    assert [f"{row.tenant} {row.agent}" for row in page.rows] == found
    assert page.older == page.newest == ""
    assert {field.name: field.value for field in page.fields if field.value} == {
        name: value
        for name, value in filters.items()
        if name not in {"failure", "trace", "provider", "subject"}
    }


async def test_row_has_the_facts_of_its_attempt(log: Path) -> None:
    refused, asked = (await calls_page(log, tenant="fund")).rows[1:]

    assert (refused.time, refused.model, refused.outcome, refused.tone, refused.tags) == (
        "2026-01-02 00:04:00", "openai/m-2", "budget exhausted", "bad", ("not sent",)
    )  # fmt: skip
    assert (asked.outcome, asked.sign, asked.input_tokens, asked.output_tokens) == (
        "accepted",
        "✓",
        "100",
        "20",
    )
    assert (asked.milliseconds, asked.usd, asked.tags) == ("100", "0.000000", ())


async def test_remarks_name_unusual_attempts(tmp_path: Path) -> None:
    reading = {
        "parser": "p",
        "transport": "text",
        "verdict": "done",
        "decode": "guess",
        "fixes": [{"kind": "quote", "where": "1"}],
    }
    log = await add(
        tmp_path / "log.jsonl",
        call(1, attempt_number=2, in_doubt=True, success=False, failure=REFUSAL),
        call(2, served_from="recorded", reading=reading),
    )

    guessed, doubtful = (await calls_page(log)).rows

    assert doubtful.tags == ("attempt 2", "in doubt")
    assert guessed.tags == ("1 changed", "from a record")
    assert (guessed.outcome, guessed.sign) == ("degraded", "✗")


async def test_hidden_filters_stay_in_the_form_and_in_links(tmp_path: Path) -> None:
    log = await add(tmp_path / "log.jsonl", *(call(n, subject="BTC") for n in range(ROWS + 1)))

    page = await calls_page(log, subject="BTC", failure="accepted", unknown="x")

    assert page.others == (("subject", "BTC"),)
    assert query_of(page.older) == {"subject": "BTC", "failure": "accepted", "before": "2"}
    assert [each.value for each in page.outcomes if each.is_chosen] == ["accepted"]


async def test_pages_have_every_attempt_once_in_order(tmp_path: Path) -> None:
    count = 2 * ROWS + 7
    log = await add(tmp_path / "log.jsonl", *(call(n, agent_id=f"a-{n}") for n in range(count)))

    pages = await every_page(log)

    assert [row.agent for page in pages for row in page.rows] == [f"a-{n}" for n in reversed(range(count))]
    assert [len(page.rows) for page in pages] == [ROWS, ROWS, 7]
    assert [bool(page.newest) for page in pages] == [False, True, True]


async def test_pages_of_several_logs_are_in_the_order_of_time(tmp_path: Path) -> None:
    for name, step_minutes in (("a", 2), ("b", 3), ("c", 500)):
        calls = (call(n * step_minutes, agent_id=f"{name}-{n}") for n in range(ROWS))
        await add(tmp_path / name / "interactions.jsonl", *calls)

    pages = await every_page(tmp_path)

    rows = [row for page in pages for row in page.rows]
    assert len({row.agent for row in rows}) == len(rows) == 3 * ROWS
    assert [row.time for row in rows] == sorted((row.time for row in rows), reverse=True)
    assert {row.log for row in rows} == {"a", "b", "c"}
    assert pages[0].has_logs


async def test_line_of_another_set_of_logs_begins_again(log: Path) -> None:
    for before in ("3-4", "x", "-", "9" * 30, "9" * 5_000):
        page = await calls_page(log, before=before)
        assert len(page.rows) == 6


async def test_words_are_searched_in_bounded_parts(tmp_path: Path) -> None:
    calls = [call(n, raw_output="the needle" if n == 0 else "hay") for n in range(SEARCHED + 3)]
    log = await add(tmp_path / "log.jsonl", *calls)

    first = await calls_page(log, grep="needle")
    second = await calls_page(log, **query_of(first.older))

    assert (first.rows, first.note) == ((), "No attempt is selected in this part of the log.")
    assert (len(second.rows), second.older) == (1, "")


async def test_tenant_sees_its_own_calls_only(log: Path) -> None:
    page = await calls_page(log, only="fund")
    filters = (
        {"envelope": "envelope-bank"},
        {"envelope": "envelope-b"},
        {"trace": "chain-of-bank"},
        {"tenant": "bank"},
    )
    others = [await calls_page(log, only="fund", **each) for each in filters]

    assert [row.tenant for row in page.rows] == ["fund"] * 3
    assert [len(each.rows) for each in others] == [0, 0, 0, 0]


async def test_limited_dashboard_has_no_filter_for_tenants(dashboard: StartDashboard, log: Path) -> None:
    shown = dashboard(SourceOptions((log.parent,), tenant="fund"))

    paths = ("/calls", "/calls?tenant=bank", "/calls?tenant=nobody")
    found, other, unknown = [await in_thread(shown.get, path) for path in paths]

    assert found.text.count(">fund <") == 3
    assert 'name="tenant"' not in found.text
    assert "bank analyst" not in found.text
    assert other.text.replace("bank", "nobody") == unknown.text


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"since": "soon"}, "since is 'soon'"),
        ({"since": "2026-01-03", "until": "2026-01-02"}, "until is 2026-01-02, at or before since"),
        ({"envelope": "envelope"}, "one of envelope-bank, envelope-fund"),
    ],
)
async def test_wrong_filter_is_refused(filters: dict[str, str], message: str, log: Path) -> None:
    with pytest.raises(OptionError, match=message):
        await calls_page(log, **filters)


async def test_hostile_text_is_text(tmp_path: Path, dashboard: StartDashboard) -> None:
    hostile = call(0, agent_id=HOSTILE, tenant_id=HOSTILE, raw_output=HOSTILE, model=HOSTILE, subject=HOSTILE)
    log = await add(tmp_path / "interactions.jsonl", hostile)

    page = await calls_page(log)
    shown = await in_thread(dashboard(SourceOptions((tmp_path,))).get, "/calls")

    assert page.rows[0].agent == LEGIBLE
    assert shown.text.count("<script") == 1
    assert "<svg" not in shown.text
    assert not any(steering in shown.text for steering in ("\x1b", "\u202e", "\u2066", "\x00"))


async def test_broken_line_is_named_and_left_out(tmp_path: Path) -> None:
    log = await add(tmp_path / "interactions.jsonl", *(call(n, agent_id=f"a-{n}") for n in range(9)))
    await calls_page(log)  # indexes the lines
    await in_thread(change_line, log, 4, lambda line: line.replace(b"a-3", b"b-3"))

    page = await calls_page(log)
    limited = await calls_page(log, only="default")

    assert [row.agent for row in page.rows] == [f"a-{n}" for n in (8, 7, 6, 5, 4, 2, 1, 0)]
    [problem] = page.problems
    assert ":4: it is not the line that was indexed" in problem
    assert str(tmp_path) not in problem
    assert len(limited.rows) == 8


async def test_log_that_cannot_be_read_leaves_the_others(tmp_path: Path) -> None:
    good = await add(tmp_path / "good" / "interactions.jsonl", call(0))
    bad = tmp_path / "bad" / "interactions.jsonl"
    await in_thread(bad.parent.mkdir)
    await in_thread(bad.write_bytes, b'{"not": "a line"}\n{"of": "a log"}\n')

    page = await calls_page(tmp_path)

    assert [row.log for row in page.rows] == ["good"]
    [problem] = page.problems
    assert "bad/interactions.jsonl:1" in problem
    assert str(good.parent.parent) not in problem


async def test_growing_log_shows_its_new_calls(tmp_path: Path, dashboard: StartDashboard) -> None:
    log = await add(tmp_path / "interactions.jsonl", call(0, agent_id="early-1"))
    shown = dashboard(SourceOptions((tmp_path,)))
    before = await in_thread(shown.get, "/calls")

    await add(log, call(1, agent_id="late-1"), step("bar.closed", 2))
    after = await in_thread(shown.get, "/calls")

    assert ("early-1" in before.text, "late-1" in before.text) == (True, False)
    assert after.text.index("late-1") < after.text.index("early-1")


async def test_vanished_log_leaves_the_page(tmp_path: Path, dashboard: StartDashboard) -> None:
    log = await add(tmp_path / "interactions.jsonl", call(0))
    shown = dashboard(SourceOptions((tmp_path,)))
    await in_thread(shown.get, "/calls")

    await in_thread(log.unlink)
    after = await in_thread(shown.get, "/calls")

    assert after.status == 200
    assert "Records may be missing" in after.text or "is gone" in after.text


async def test_figures_are_those_of_the_report(sessions: dict[str, RunReport]) -> None:
    report = sessions["faults"]

    rows = [row for page in await every_page(report.log) for row in page.rows]

    assert len(rows) == report.attempts
    assert sum(int(row.input_tokens.replace(",", "")) for row in rows) == report.input_tokens
    assert sum(int(row.output_tokens.replace(",", "")) for row in rows) == report.output_tokens
    assert sum(round(float(row.usd) * NANO) for row in rows) == pytest.approx(
        report.cost_nusd, abs=500 * len(rows)
    )
    accepted = sum(row.outcome == "accepted" for row in rows)
    assert accepted == report.accepted
    assert sum("not sent" not in row.tags for row in rows) == report.sent


async def test_form_keeps_a_filter_as_it_was_given(log: Path, dashboard: StartDashboard) -> None:
    shown = dashboard(SourceOptions((log,)))

    query = urlencode({"grep": "a\u200cb", "subject": "c\u200cd"})
    html = (await in_thread(shown.get, f"/calls?{query}")).text

    assert 'name="grep" value="a\u200cb"' in html
    assert 'name="subject" value="c\u200cd"' in html

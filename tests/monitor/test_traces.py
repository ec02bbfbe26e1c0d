"""The page Trace: steps, figures, texts, and the ids by which it is found."""

import asyncio
import json
import shutil
from contextlib import aclosing
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from agentic_trading.audit.spend import spend_report
from agentic_trading.audit.trace import EventNode, why
from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.session.report import RunReport
from agentic_trading.llm.event import Event
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.log_line import CHAIN_TAG, read_line
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.monitor.records import MOST_CHARS, MOST_PAGE_CHARS, PageTexts
from agentic_trading.monitor.sources import SourceOptions
from agentic_trading.monitor.traces import MOST_RECORDS, TraceSearch, TraceView
from tests.audit.reading import REFUSAL, call, desk, step
from tests.flows.sessions import kept_in
from tests.llm.stores.jsonl_logs import change_line, lines_in
from tests.monitor.conftest import StartDashboard
from tests.monitor.record_pages import (
    HOSTILE,
    LEGIBLE,
    add,
    facts_of,
    in_thread,
    trace_or_search,
    trace_page,
)

FILLED = [
    ("bar", "BTCUSDT 1h closed at 27,875.65, open 27,850.21, high 27,934.63, low 27,711.0", 0),
    ("call, analysis", "cmt-analyst asked local/smollm2-135m: accepted, 1 attempt, 2,440 tokens in, 1,130 out, 0.000000 USD", 0),
    ("assessment", "long, score 7, needed 4, reward for risk 1.99, confidence low", 0),
    ("intent", "buy 2.91842 BTCUSDT, entry, stop 27,533.00, target 28,560.93, 1 % of 100,000 at risk", 0),
    ("call, execution", "execution-1 asked local/smollm2-135m: accepted, 1 attempt, 1,818 tokens in, 87 out, 0.000000 USD", 0),
    ("how to fill", "single, limit, slices 1, cancel after 1,800 s", 0),
    ("order", "buy 2.91842 BTCUSDT, limit, cancel at 2023-03-21 02:30", 0),
    ("fill", "buy 2.91842 BTCUSDT at 27,876.00, fee 40.67693796 USDT, taker, by order", 1),
    ("fill", "sell 2.91842 BTCUSDT at 27,531.62, fee 40.17441523 USDT, taker, by stop loss", 1),
]  # fmt: skip
"""The chain of the only trade of the recorded session."""


def kept(report: RunReport) -> list[Event | LLMInteraction]:
    return asyncio.run(kept_in(report.log))


def of_kind(report: RunReport, kind: str) -> list[Event]:
    return [each for each in kept(report) if isinstance(each, Event) and each.kind == kind]


def steps_of(page: TraceView) -> list[tuple[str, str, int]]:
    return [(node.name, node.sentence, node.level) for node in page.nodes]


async def test_recorded_trade_is_a_line_of_sentences(sessions: dict[str, RunReport]) -> None:
    report = sessions["recorded"]
    [_, stop] = await in_thread(of_kind, report, "order.filled")

    page = await trace_page(stop.id, report.log)

    assert steps_of(page) == FILLED
    assert [node.is_asked for node in page.nodes] == [False] * 8 + [True]
    assert page.nodes[0].lines == ("thesis due: never assessed",)
    assert {node.time for node in page.nodes[:7]} == {"2023-03-21 02:00"}
    assert (page.outcome, page.problems) == ("long → 2 fills", ())
    steps, cost, profit, log = page.figures
    assert (steps.value, steps.note) == ("9", "2 calls, 2 attempts, 0 changes")
    assert cost.value == "0.000000 USD"
    assert (profit.value, profit.note) == (
        f"{report.pnl:+,.2f} USDT",
        f"2 fills, fees {report.fees:,.2f} USDT",
    )
    assert (log.name, log.value, log.tone) == ("log recorded", "✓ whole at its end", "good")
    assert log.note.startswith(f"{len(await kept_in(report.log)):,} lines.")


async def test_opened_call_shows_its_whole_record(sessions: dict[str, RunReport]) -> None:
    report = sessions["recorded"]
    [fill, _] = await in_thread(of_kind, report, "order.filled")
    call_on_record = next(
        each
        for each in await kept_in(report.log)
        if isinstance(each, LLMInteraction) and each.trace_id == fill.trace_id
    )
    envelope, result = call_on_record.envelope, call_on_record.result

    opened = (await trace_page(fill.id, report.log)).nodes[1].call

    assert opened is not None
    assert opened.prompt.text == envelope.instructions
    assert json.loads(opened.context.text) == json.loads(envelope.context_json)
    assert json.loads(opened.schema.text) == json.loads(envelope.output_schema_json)
    assert [json.loads(item.text.text) for item in opened.evidence] == [
        json.loads(item) for item in envelope.evidence_json
    ]
    assert opened.evidence_title == f"Evidence, {len(envelope.evidence_json)} items"
    assert opened.evidence[0].title.startswith("E1, layers/trend, known from 2023-03-21 02:00")
    facts = facts_of(opened.facts)
    assert facts["envelope"] == envelope.envelope_id
    assert facts["hash of the request"] == envelope.request_hash
    [attempt] = opened.attempts
    assert attempt.answer is not None
    assert json.loads(attempt.answer.text) == json.loads(result.raw_output)
    assert (attempt.outcome, attempt.tone, attempt.tags) == ("accepted", "good", ("recorded answer",))
    facts = facts_of(attempt.facts)
    assert (
        facts["tokens"]
        == f"{result.usage.total_input_tokens:,} in (0 from a cache), 1,130 out (0 for thinking)"
    )
    assert facts["interaction"] == call_on_record.interaction_id
    assert facts["hash of the answer"] == result.output_hash
    async with aclosing(JsonlRecords(report.log)) as records:
        [line] = [
            line
            async for line in records.read(lambda one: one)
            if call_on_record.interaction_id.encode() in line.line[:200]
        ]
    assert facts["on record"] == f"line {line.seq} of recorded"
    assert (facts["hash of the line"], facts["hash before it"]) == (line.hash, line.prev)


async def test_page_has_the_figures_of_spend_and_why(sessions: dict[str, RunReport]) -> None:
    report = sessions["faults"]
    async with aclosing(JsonlRecords(report.log)) as records:
        for fill in await in_thread(of_kind, report, "order.filled"):
            page = await trace_page(fill.id, report.log)
            path = (await why(records, fill.id)).path
            spent = await spend_report(records, query=RecordQuery(trace_id=fill.trace_id))

            assert page.trace_id == fill.trace_id
            assert (
                round(float(page.figures[1].value.removesuffix(" USD")) * NANO, -3) == spent.total.cost_nusd
            )
            events = [node.id for node in path if isinstance(node, EventNode)]
            shown = [facts_of(node.facts)["event"].split()[1] for node in page.nodes if node.facts]
            assert [each for each in shown if each in events] == events
            attempts = [each for node in page.nodes if node.call for each in node.call.attempts]
            assert len(attempts) == spent.total.attempts + spent.total.refused


async def test_profits_of_closed_chains_are_those_of_the_session(sessions: dict[str, RunReport]) -> None:
    report = sessions["faults"]
    traces = dict.fromkeys(fill.trace_id for fill in await in_thread(of_kind, report, "order.filled"))

    profits = [(await trace_page(each, report.log)).figures[2] for each in traces]

    closed = [each for each in profits if each.value != "-"]
    [opened] = [each for each in profits if each.value == "-"]
    assert opened.note.endswith(f"They leave {report.open_positions[0].quantity:+f} BTCUSDT")
    amounts = [float(each.value.removesuffix(" USDT").replace(",", "")) for each in closed]
    assert [each.tone for each in closed] == ["good" if amount > 0 else "bad" for amount in amounts]
    [position] = report.open_positions
    paid = next(fill for fill in reversed(await in_thread(of_kind, report, "order.filled"))).body
    unrealised = float(position.unrealised) - float(paid["fee"])
    assert sum(amounts) + unrealised == pytest.approx(float(report.pnl), abs=0.02)


async def test_attempts_show_changes_rules_and_sending(sessions: dict[str, RunReport]) -> None:
    report = sessions["faults"]
    attempts = [each for each in await kept_in(report.log) if isinstance(each, LLMInteraction)]
    broken = next(each for each in attempts if each.result.reading and each.result.reading.errors)
    changed = next(each for each in attempts if each.result.reading and each.result.reading.fixes)
    assert broken.result.reading is not None
    assert changed.result.reading is not None

    for wanted in (broken, changed):
        page = await trace_page(wanted.interaction_id, report.log)
        [node] = [node for node in page.nodes if node.is_asked]
        assert node.call is not None
        view = node.call.attempts[wanted.result.attempt_number - 1]
        reading = wanted.result.reading
        assert reading is not None
        assert [rule.path for rule in view.rules] == [each.path for each in reading.errors]
        assert [change.where for change in view.changes] == [
            each.where for each in (*reading.fixes, *reading.coercions, *reading.patches)
        ]
        facts = facts_of(view.facts)
        line = int(facts["on record"].split()[1].replace(",", ""))
        assert facts["sending"] == f"recorded before, in line {line - 1} of faults"
        assert not any(other.name == "attempt dispatched" for other in page.nodes)


async def test_chain_is_found_by_each_of_its_ids(tmp_path: Path) -> None:
    log = await add(tmp_path / "log.jsonl", *desk("fund"), *desk("bank"))
    attempt = next(each for each in await kept_in(log) if isinstance(each, LLMInteraction))
    ids = ["fill-fund", "assessed-fund", "bar-fund", "envelope-fund", attempt.interaction_id, "chain-of-fund"]

    for wanted in (*ids, "assessed-f", "envelope-f", "chain-of-f", attempt.interaction_id[:8], " fill-fund "):
        search = await trace_or_search(wanted, log)
        page = search if isinstance(search, TraceView) else await trace_page(wanted.strip(), log)
        assert page.trace_id == "chain-of-fund"

    several = await trace_or_search("chain-of-", log)
    assert isinstance(several, TraceSearch)
    assert [each for each, _ in several.matches] == ["chain-of-bank", "chain-of-fund"]


async def test_unknown_id_is_as_that_of_another_tenant(tmp_path: Path, dashboard: StartDashboard) -> None:
    await add(tmp_path / "interactions.jsonl", *desk("fund"), *desk("bank"))
    shown = dashboard(SourceOptions((tmp_path,), tenant="fund"))
    own = await in_thread(shown.get, "/trace?id=fill-fund")
    everything = await in_thread(shown.get, "/trace")

    for other in ("fill-bank", "assessed-bank", "bar-bank", "envelope-bank", "chain-of-bank", "chain-of-b"):
        found = await in_thread(shown.get, f"/trace?id={other}")
        unknown = await in_thread(shown.get, f"/trace?id={other.replace('b', 'x')}")
        text = await in_thread(shown.get, f"/trace/text?id={other}&field=body")
        missing = await in_thread(shown.get, "/trace/text?id=x&field=body")
        assert found.status == unknown.status == 404
        assert found.text.replace(other, other.replace("b", "x")) == unknown.text
        assert (text.status, text.text) == (404, missing.text)
    assert own.status == everything.status == 200
    assert "bank" not in own.text + everything.text


async def test_chain_of_two_tenants_shows_only_one(tmp_path: Path) -> None:
    shared = [
        step("bar.closed", n, id=f"bar-{n}", trace_id="t", tenant_id=("a", "b")[n % 2]) for n in range(4)
    ]
    log = await add(tmp_path / "log.jsonl", *shared)

    assert len((await trace_page("t", log)).nodes) == 4
    assert [facts_of(node.facts)["tenant"] for node in (await trace_page("t", log, tenant="a")).nodes] == [
        "a",
        "a",
    ]


async def test_effects_are_indented_only_where_a_cause_has_several(tmp_path: Path) -> None:
    of = {"trace_id": "t"}
    log = await add(
        tmp_path / "log.jsonl",
        step("a.b", 0, id="root", **of),
        step("a.b", 1, id="only", causation_id="root", **of),
        step("a.b", 2, id="left", causation_id="only", **of),
        step("a.b", 3, id="right", causation_id="only", **of),
        step("a.b", 4, id="below", causation_id="right", **of),
        step("a.b", 5, id="orphan", causation_id="missing", **of),
    )

    page = await trace_page("t", log)

    assert [(facts_of(node.facts)["event"].split()[1], node.level) for node in page.nodes] == [
        ("root", 0), ("only", 0), ("left", 1), ("right", 1), ("below", 1), ("orphan", 0)
    ]  # fmt: skip
    assert page.problems == ("Causes that are not in this chain: missing.",)


async def test_ring_of_causes_is_named(tmp_path: Path) -> None:
    ring = [step("a.b", id=one, trace_id="t", causation_id=other) for one, other in (("x", "y"), ("y", "x"))]

    page = await trace_page("t", await add(tmp_path / "log.jsonl", *ring))

    assert len(page.nodes) == 2
    assert page.problems == ("A cycle of causes: x, y.",)


async def test_events_of_unknown_kinds_show_their_values(tmp_path: Path) -> None:
    log = await add(
        tmp_path / "log.jsonl", step("acme.order_sent", id="x", trace_id="t", body={"size": 7, "of": {}})
    )

    [node] = (await trace_page("t", log)).nodes

    assert (node.name, node.sentence) == ("acme order sent", "size 7")
    assert node.body is not None
    assert json.loads(node.body.text) == {"size": 7, "of": {}}


async def test_chain_of_two_logs_is_one(tmp_path: Path) -> None:
    chain = desk("fund")
    client = await add(tmp_path / "client" / "interactions.jsonl", chain[0], chain[2], chain[3])
    worker = await add(tmp_path / "worker" / "interactions.jsonl", *chain[:2])

    page = await trace_page("fill-fund", client.parent, worker.parent)

    assert [node.name for node in page.nodes] == ["bar closed", "call, general", "assessment", "fill"]
    assert [figure.name for figure in page.figures[3:]] == ["log client", "log worker"]
    assert facts_of(page.nodes[0].facts)["on record"] == "line 1 of client"


async def test_newest_chains_are_listed_without_an_id(tmp_path: Path) -> None:
    log = await add(tmp_path / "log.jsonl", *desk("fund"), *desk("bank"))

    page = await trace_or_search("", log, tenant="fund")

    assert isinstance(page, TraceSearch)
    assert [(row.trace_id, row.subject, row.outcome, row.calls) for row in page.chains[1:]] == [
        ("refused-fund", "-", "budget_exhausted", "1"),
        ("chain-of-fund", "BTCUSDT", "long → 1 fill", "1"),
    ]


async def test_long_text_is_cut_and_linked(tmp_path: Path, dashboard: StartDashboard) -> None:
    answer = "a" * (10 << 20)
    instructions = json.dumps({"b": "c" * MOST_CHARS})
    log = await add(
        tmp_path / "interactions.jsonl", call(1, raw_output=answer, instructions=instructions, trace_id="t")
    )

    page = await trace_page("t", log)
    [node] = page.nodes
    assert node.call is not None
    shown = node.call.attempts[0].answer
    assert shown is not None
    server = dashboard(SourceOptions((tmp_path,)))
    html = await in_thread(server.get, "/trace?id=t")
    whole = await in_thread(server.get, shown.href)

    assert (len(shown.text), shown.note) == (MOST_CHARS, "The first 204,800 of 10,485,760 characters.")
    assert len(html.text) < 3 * MOST_CHARS
    assert (whole.status, whole.text) == (200, answer)
    assert whole.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (await in_thread(server.get, node.call.prompt.href)).text == instructions


async def test_texts_of_a_page_are_bounded_together(tmp_path: Path) -> None:
    count = MOST_PAGE_CHARS // MOST_CHARS + 5
    calls = [call(n, raw_output="a" * MOST_CHARS, trace_id="t") for n in range(count)]

    page = await trace_page("t", await add(tmp_path / "log.jsonl", *calls))

    texts = [node.call.attempts[0].answer for node in page.nodes if node.call]
    assert len(texts) == count
    assert sum(len(text.text) for text in texts if text) <= MOST_PAGE_CHARS
    assert texts[-1] is not None
    assert (texts[-1].text, texts[-1].note) == ("", "The first 0 of 204,800 characters.")


async def test_long_chain_is_cut(tmp_path: Path) -> None:
    records = [step("bar.closed", n, trace_id="t") for n in range(MOST_RECORDS + 2)]

    page = await trace_page("t", await add(tmp_path / "log.jsonl", *records))

    assert len(page.nodes) == MOST_RECORDS
    assert page.problems == ("The first 1,000 records of this chain in log.jsonl are shown.",)


async def test_hostile_text_is_text(tmp_path: Path, dashboard: StartDashboard) -> None:
    fields = {
        "agent_id": HOSTILE,
        "subject": HOSTILE,
        "instructions": HOSTILE,
        "context": {HOSTILE: HOSTILE},
        "raw_output": HOSTILE,
        "model": HOSTILE,
        "success": False,
        "failure": {"category": "refusal", "description": HOSTILE},
        "stop_reason": HOSTILE,
        "tenant_id": HOSTILE,
        "trace_id": HOSTILE,
    }
    hostile = [
        call(1, envelope_id="envelope-1", interaction_id="interaction-1", **fields),
        step("order.filled", 2, id=HOSTILE, causation_id="envelope-1", body={"symbol": HOSTILE, "side": HOSTILE}, trace_id=HOSTILE, tenant_id=HOSTILE),
        step("acme.done", 3, id="x", body={HOSTILE: HOSTILE}, trace_id=HOSTILE, tenant_id=HOSTILE),
    ]  # fmt: skip
    await add(tmp_path / "interactions.jsonl", *hostile)
    server = dashboard(SourceOptions((tmp_path,)))
    addresses = [
        "/trace",
        *(f"/trace?{urlencode({'id': each})}" for each in ("envelope-1", HOSTILE, f"{HOSTILE}2")),
    ]

    for address in addresses:
        found = await in_thread(server.get, address)
        assert found.text.count("<script") == 1
        assert "<svg" not in found.text
        assert not any(steering in found.text for steering in ("\x1b", "\u202e", "\u2066", "\x00"))
    page = await trace_page("envelope-1", tmp_path)
    assert page.nodes[0].call is not None
    assert page.nodes[0].call.prompt.text == LEGIBLE
    text = await in_thread(server.get, "/trace/text?id=interaction-1&field=instructions")
    assert text.text == HOSTILE
    assert text.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("field", ["nothing", "body", "raw_output", "evidence-2", ""])
async def test_unknown_text_is_not_found(field: str, tmp_path: Path, dashboard: StartDashboard) -> None:
    await add(tmp_path / "interactions.jsonl", call(1, interaction_id="interaction-1"))
    shown = dashboard(SourceOptions((tmp_path,)))

    assert (await in_thread(shown.get, f"/trace/text?id=interaction-1&field={quote(field)}")).status == 404


async def test_altered_line_is_named_and_left_out(tmp_path: Path, dashboard: StartDashboard) -> None:
    log = await add(tmp_path / "interactions.jsonl", *desk("fund"))
    shown = dashboard(SourceOptions((tmp_path,)))
    limited = dashboard(SourceOptions((tmp_path,), tenant="fund"))
    for server in (shown, limited):
        await in_thread(server.get, "/trace?id=fill-fund")
    await in_thread(change_line, log, 3, lambda line: line.replace(b'"long"', b'"flat"'))

    page = await trace_page("fill-fund", log)
    found, other = [await in_thread(each.get, "/trace?id=fill-fund") for each in (shown, limited)]
    asked = await in_thread(shown.get, "/trace?id=assessed-fund")

    assert [node.name for node in page.nodes] == ["bar closed", "call, general", "fill"]
    assert page.figures[2].value == "-"
    assert "interactions.jsonl:3: it is not the line that was indexed" in found.text
    assert "is not whole. Records may be missing." in other.text
    assert ":3:" not in other.text
    assert str(tmp_path) not in found.text + other.text + asked.text
    assert "interactions.jsonl:3: it is not the line that was indexed" in asked.text


async def test_cut_log_is_named(sessions: dict[str, RunReport], tmp_path: Path) -> None:
    [fill, _] = await in_thread(of_kind, sessions["recorded"], "order.filled")
    folder = tmp_path / "cut"
    await in_thread(shutil.copytree, sessions["recorded"].log.parent, folder)
    log = folder / "interactions.jsonl"
    await in_thread(log.write_bytes, b"".join((await in_thread(lines_in, log))[:-2]))

    page, limited = await trace_page(fill.id, folder), await trace_page(fill.id, folder, tenant="default")

    check = page.figures[3]
    assert (check.value, check.tone) == ("✗ cut off", "bad")
    assert str(tmp_path) not in check.note
    assert (limited.figures[3].value, limited.figures[3].note) == ("✗ not whole", "records may be missing")


async def test_line_of_another_version_is_named(tmp_path: Path) -> None:
    log = await add(tmp_path / "interactions.jsonl", *desk("fund"))

    def rewritten() -> None:
        prev, lines = "0" * 64, []
        for raw in lines_in(log):
            line = read_line(raw)
            record = line.line[: line.cut]
            if line.seq == 2:
                record = record.replace(b'"schema_version":"', b'"schema_version":"9', 1).replace(
                    b'"instructions"', b'"orders"', 1
                )
            head = record + f',"seq":{line.seq},"prev":"{prev}"'.encode()
            prev = sha256_hex(CHAIN_TAG, head)
            lines.append(head + f',"hash":"{prev}"}}\n'.encode())
        log.write_bytes(b"".join(lines))

    await in_thread(rewritten)

    page = await trace_page("fill-fund", log)

    assert [node.name for node in page.nodes] == ["bar closed", "assessment", "fill"]
    assert ":2: " in page.problems[0]


async def test_refused_call_is_explained(tmp_path: Path) -> None:
    log = await add(tmp_path / "log.jsonl", *desk("fund"))

    [node] = (await trace_page("refused-fund", log)).nodes

    assert node.sentence.startswith("trader asked openai/m-2: budget exhausted, 1 attempt")
    assert node.tone == "call-fault"
    assert node.call is not None
    [attempt] = node.call.attempts
    assert (attempt.outcome, attempt.failure, attempt.answer) == (
        "budget exhausted",
        REFUSAL["description"],
        None,
    )


async def test_growing_chain_gains_steps(tmp_path: Path, dashboard: StartDashboard) -> None:
    chain = desk("fund")
    log = await add(tmp_path / "interactions.jsonl", *chain[:2])
    shown = dashboard(SourceOptions((tmp_path,)))
    before = await in_thread(shown.get, "/trace?id=chain-of-fund")

    await add(log, *chain[2:])
    after = await in_thread(shown.get, "/trace?id=chain-of-fund")

    assert [page.text.count("<summary><span") for page in (before, after)] == [2, 4]


def test_json_that_would_be_too_long_with_line_breaks_is_whole_without_them() -> None:
    text = f"[{','.join('1' * (MOST_CHARS // 4))}]"

    shown = PageTexts().shown(text, "r-1", "answer")

    assert (shown.text, shown.note) == (text, "")

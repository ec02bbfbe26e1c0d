"""`trace` finds chains, draws them whole, and says why there was a fill."""

import asyncio
import json
import re
from contextlib import aclosing
from decimal import Decimal
from pathlib import Path

import pytest
from rich.console import Console

from agentic_trading.cli.chains import chain_table
from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.options import trace_command
from agentic_trading.cli.output import print_table
from agentic_trading.ids import derived_id
from agentic_trading.llm import Event, JsonFileInteractionStore, LLMInteraction
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.store import TraceSummary
from agentic_trading.platform import local_gateway
from tests.audit.reading import desk, write
from tests.build import event
from tests.cli.conftest import Command
from tests.gateway import asking, gateway
from tests.platform.test_verbatim import asking as verbatim_envelope


def first_fill(session: Path) -> dict[str, str]:
    """Return the first fill of a session's decision log."""
    lines = (session / "decisions.jsonl").read_bytes().splitlines()
    return next(line for line in map(json.loads, lines) if line["kind"] == "order.filled")


def log_of(*events: Event) -> Path:
    """Write events into a log below the present folder."""

    async def written() -> Path:
        store = JsonFileInteractionStore(Path("session/interactions.jsonl"))
        for each in events:
            await store.record(each)
        await store.aclose()
        return store.path

    return asyncio.run(written())


def test_why_shows_path_from_bar_to_fill(session: Path, command: Command) -> None:
    ended = command("trace", "why", first_fill(session)["id"], "--store", session)

    steps = [
        "bar:",
        "analysis.triggered",
        "call.analysis",
        "analysis.assessed",
        "intent.approved",
        "call.execution",
        "intent.strategy_chosen",
    ]
    places = [ended.out.index(step) for step in [*steps, "order.submitted", "fee "]]
    assert ended.code == ExitCode.DONE
    assert places[1:] == sorted(places[1:])
    assert "1h · close_time 2023-03-21T" in ended.out


def test_why_json_contains_the_records(session: Path, command: Command) -> None:
    fill = first_fill(session)

    answer = json.loads(command("trace", "why", fill["id"], "--store", session, "--json").out)

    assert answer["missing_cause"] == ""
    assert [step["kind"] for step in answer["path"]][::3] == [
        "analysis.triggered",
        "intent.approved",
        "order.submitted",
    ]
    assert answer["path"][-1]["records"][0]["body"]["fill_id"] == fill["id"]


def test_trace_show_draws_every_step(session: Path, command: Command) -> None:
    trace_id = first_fill(session)["trace_id"]

    drawn = command("trace", "show", trace_id, "--store", session).out
    steps = json.loads(command("trace", "show", trace_id, "--store", session, "--json").out)

    assert f"{len(steps)} steps" in drawn
    assert all(step["id"] in drawn for step in steps)
    assert steps[0]["depth"] == 0
    assert "has a cause that is not in this trace" not in drawn


def test_trace_list_shows_newest_chains(session: Path, command: Command) -> None:
    drawn = command("trace", "list", "--store", session, "--limit", 3).out
    chains = json.loads(command("trace", "list", "--store", session, "--limit", 3, "--json").out)

    assert len(chains) == 3
    assert [chain["trace_id"] in drawn for chain in chains] == [True] * 3


def test_suggested_trace_list_quotes_its_paths() -> None:
    logs = [Path("my runs/$(a)/log.jsonl"), Path("plain/log.jsonl")]

    assert (
        trace_command("list", logs, "a b")
        == "agentic-trading trace list --store 'my runs/$(a)/log.jsonl' --store plain/log.jsonl --tenant 'a b'"
    )


@pytest.mark.parametrize("verb", ["show", "why"])
def test_unknown_id_error_suggests_trace_list(verb: str, session: Path, command: Command) -> None:
    ended = command("trace", verb, "nobody", "--store", session)

    assert ended.code == ExitCode.FOUND_WRONG
    assert "'nobody'" in ended.err
    assert "agentic-trading trace list" in ended.err


def test_store_defaults_to_environment_or_newest_session(
    session: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_id = first_fill(session)["id"]
    assert command("trace", "why", fill_id).code == ExitCode.BAD_INPUT

    monkeypatch.setenv("AGENTIC_RUNS", str(session.parent))
    by_age = command("trace", "why", fill_id)
    monkeypatch.setenv("AGENTIC_STORE", str(session / "interactions.jsonl"))
    by_name = command("trace", "why", fill_id)

    assert (by_age.code, by_name.code) == (ExitCode.DONE, ExitCode.DONE)


@pytest.mark.parametrize("place", ["nowhere", ".", "n" * 300])
def test_missing_log_error_explains_store(place: str, command: Command) -> None:
    ended = command("trace", "list", "--store", place)

    assert ended.code == ExitCode.BAD_INPUT
    assert f"--store is {place}" in ended.err
    assert "interactions.jsonl" in ended.err


def test_broken_line_makes_log_unusable(session: Path, command: Command, tmp_path: Path) -> None:
    log = tmp_path / "interactions.jsonl"
    lines = (session / "interactions.jsonl").read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([lines[0], lines[1].replace(b":", b";", 1), *lines[2:]]))

    ended = command("trace", "list", "--store", log)

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert "interactions.jsonl:2" in ended.err


def test_missing_cause_is_named(command: Command) -> None:
    log = log_of(event("order.filled", id="f-1", trace_id="t-1", causation_id="gone"))

    assert (
        "order.filled f-1 has a cause that is not in this trace: gone"
        in command("trace", "show", "t-1", "--store", log).out
    )
    assert "the path is incomplete: gone" in command("trace", "why", "f-1", "--store", log).out


def test_cyclic_causes_are_named(command: Command) -> None:
    log = log_of(
        event("step", id="a", trace_id="t-1", causation_id="b"),
        event("step", id="b", trace_id="t-1", causation_id="a"),
    )

    shown = command("trace", "show", "t-1", "--store", log).out

    assert "cycle of causes: a, b" in shown


def test_why_shows_siblings_and_effects(command: Command) -> None:
    log = log_of(
        event("order.submitted", id="o-1", trace_id="t-1"),
        event("order.filled", id="f-1", trace_id="t-1", causation_id="o-1"),
        event("order.filled", id="f-2", trace_id="t-1", causation_id="o-1"),
        event("note", id="n-1", trace_id="t-1", causation_id="f-1"),
    )

    told = command("trace", "why", "f-1", "--store", log).out

    assert told.index("Siblings") < told.index("f-2") < told.index("Effects") < told.index("n-1")


def test_chain_list_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    chain = TraceSummary(
        trace_id=derived_id("chain"),
        first="2023-03-21T16:00:00Z",
        last="2023-03-21T16:05:00Z",
        attempts=12,
        events=7,
        cost_nusd=1_234_567_890,
        subject="BTCUSDT",
    )

    print_table(chain_table([(chain, "short → 12 fills")], 80), on=Console(width=80))

    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[-1] == chain.trace_id
    assert len(row) <= 80


def test_chain_without_calls_is_listed_on_demand(command: Command) -> None:
    log = log_of(event("analysis.triggered", trace_id="t-1"), event("analysis.skipped", trace_id="t-1"))

    asked = json.loads(command("trace", "list", "--store", log, "--json").out)
    every = json.loads(command("trace", "list", "--store", log, "--all", "--json").out)

    assert (asked, [chain["trace_id"] for chain in every]) == ([], ["t-1"])


def test_chain_list_shows_outcomes(session: Path, command: Command) -> None:
    fill = first_fill(session)
    chains = json.loads(command("trace", "list", "--store", session, "--limit", 100, "--json").out)

    outcomes = {chain["trace_id"]: chain["outcome"] for chain in chains}
    assert re.fullmatch(r"(long|short) → \d+ fills?", outcomes[fill["trace_id"]])


def test_list_without_calls_names_the_option_for_all_chains(command: Command) -> None:
    log = log_of(event("other.ordered", trace_id="chain-of-fund"))

    listed = command("trace", "list", "--store", log)
    every = command("trace", "list", "--all", "--store", log)
    filtered = command("trace", "list", "--agent", "trader", "--store", log)

    assert (listed.code, "chain-of-fund" in listed.out) == (ExitCode.DONE, False)
    assert listed.err == "Note: no chain has a call. To list chains without a call, add --all.\n"
    assert ("chain-of-fund" in every.out, every.err, filtered.err) == (True, "", "")


def test_reasked_call_shows_attempts_and_sum(command: Command) -> None:
    wrong, mended = '{"action":"hold","size":"2"}', '{"action":"buy","size":1.50,}'

    async def asked() -> tuple[str, int]:
        async with aclosing(JsonFileInteractionStore(Path("session/interactions.jsonl"))) as store:
            desk = gateway([wrong, mended], store=store)
            envelope = asking("planning").build()
            await desk.runner.run(envelope)
            return envelope.trace_id, desk.ledger.statistics().charged_nusd

    trace_id, charged_nusd = asyncio.run(asked())
    ended = command("trace", "show", trace_id, "--store", "session")

    assert ended.code == ExitCode.DONE
    lines = [line.strip(" │├└─") for line in ended.out.splitlines()]
    first, second, both = (
        next(line for line in lines if line.startswith(start))
        for start in ("attempt 1 ", "attempt 2 ", "2 attempts in total ")
    )
    assert "failed at schema_validation" in first
    assert "accepted" in second
    assert f"answered: {wrong}" in lines
    assert any(
        line.startswith("$.action:") and "was: hold; allowed: buy, sell, wait" in line for line in lines
    )
    assert f"answered: {mended}" in lines
    assert any(line.endswith("trailing comma at 27: , left out") for line in lines)
    assert f"{charged_nusd / 10**9:.6f} USD" in both


@pytest.mark.parametrize(
    ("words", "chains"),
    [
        ((), ["chain-of-fund", "refused-fund"]),
        (("--verdict", "long"), ["chain-of-fund"]),
        (("--failure", "*"), ["refused-fund"]),
        (("--kind", "order.filled", "--subject", "ETHUSDT"), ["chain-of-fund"]),
        (("--agent", "trader", "--workflow", "execution", "--provider", "openai"), ["refused-fund"]),
        (("--model", "m-1"), ["chain-of-fund"]),
        (("--trace", "chain-of"), ["chain-of-fund"]),
        (("--since", "2026-01-02T00:04", "--until", "2026-01-02T01:00"), ["refused-fund"]),
        (("--where", "verdict = 'long' OR failure <> ''"), ["chain-of-fund", "refused-fund"]),
        (("--verdict", "short"), []),
    ],
    ids=str,
)
def test_filters_select_chains(words: tuple[str, ...], chains: list[str], command: Command) -> None:
    log = write(Path("session/interactions.jsonl"), *desk()[:5])

    ended = command("trace", "list", "--store", log, "--json", *words)

    assert sorted(chain["trace_id"] for chain in json.loads(ended.out)) == chains


def test_ambiguous_trace_of_a_filter_is_refused(command: Command) -> None:
    log = write(Path("session/interactions.jsonl"), *desk("a"), *desk("b"))

    ended = command("trace", "list", "--store", log, "--trace", "chain-of")

    assert ended.code == ExitCode.FOUND_WRONG
    assert "several ids start with 'chain-of': chain-of-a, chain-of-b" in ended.err


def test_chains_of_several_logs_are_read(command: Command) -> None:
    for tenant in ("a", "b"):
        write(Path(f"runs/{tenant}/interactions.jsonl"), *desk(tenant)[:4])

    listed = command("trace", "list", "--store", "runs/a", "--store", "runs/b").out.splitlines()
    shown = command("trace", "show", "chain-of-b", "--store", "runs")
    why = command("trace", "why", "fill-b", "--store", "runs")
    unknown = command("trace", "show", "nobody", "--store", "runs")

    assert sorted(line.split()[-1] for line in listed[1:]) == ["chain-of-a", "chain-of-b"]
    assert "fill-b" in shown.out
    assert why.out.splitlines()[1].split()[1] == "bar.closed"
    assert "trace list --store runs/a/interactions.jsonl --store runs/b/interactions.jsonl" in unknown.err


def test_passed_on_answer_has_its_own_word(tmp_path: Path, command: Command) -> None:
    async def asked() -> str:
        async with local_gateway(ScriptedProvider(["{}"]), budget_usd=Decimal(1), folder=tmp_path) as client:
            answer = await client.ask(verbatim_envelope())
            assert isinstance(answer, LLMInteraction)
            return answer.envelope.trace_id

    trace = asyncio.run(asked())
    shown = command("trace", "show", trace, "--store", tmp_path).out

    assert "passed_on" in shown
    assert "degraded" not in shown


@pytest.mark.parametrize("characters", [8, 36])
def test_why_of_a_chain_names_trace_show(characters: int, session: Path, command: Command) -> None:
    trace_id = first_fill(session)["trace_id"]

    ended = command("trace", "why", trace_id[:characters], "--store", session)

    assert ended.code == ExitCode.FOUND_WRONG
    assert f"agentic-trading trace show {trace_id} --store" in ended.err

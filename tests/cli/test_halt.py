"""Halts on the command line: what is stopped, what is not, and what a wrong word is told."""

import asyncio
import json
import re
import shutil
from contextlib import aclosing
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.governance.status_feed import BudgetStatus, CallCounts, CounterStatus, FileStatusFeed
from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.platform.port_adapters import ledger_of
from tests.build import NOW, interaction
from tests.cli.conftest import Command
from tests.governance.asking import ask, spend
from tests.llm.stores.jsonl_logs import blank_lines
from tests.redis_server import RealServer


@pytest.fixture
def place(session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of a session's folder, which every command means."""
    folder = Path(shutil.copytree(session, tmp_path / "session"))
    monkeypatch.setenv("AGENTIC_STORE", str(folder))
    return folder


@pytest.mark.usefixtures("place")
def test_halt_ends_only_by_exact_resume(command: Command) -> None:
    halted = command("halt", "--agent", "cmt-analyst", "--why", "drifts")
    wrong = command("resume")
    shown = command("budget", "show")
    resumed = command("resume", "--agent", "cmt-analyst")

    assert "HALTED                agent cmt-analyst by " in halted.out
    assert (wrong.code, wrong.err) == (
        ExitCode.BAD_INPUT,
        "Error: tenant default: is not halted. Allowed: agent cmt-analyst\n",
    )
    assert "HALTED: agent cmt-analyst, by " in shown.out
    assert ": drifts" in shown.out
    assert "HALTED" not in resumed.out


@pytest.mark.usefixtures("place")
def test_second_halt_names_the_first(command: Command) -> None:
    command("halt", "--why", "first")

    told = command("halt")

    assert told.code == ExitCode.BAD_INPUT
    assert "tenant default: is halted already, by " in told.err
    assert "first. Allowed: resume it" in told.err


@pytest.mark.usefixtures("place")
def test_global_halt_is_shown_to_each_tenant(command: Command) -> None:
    halted = command("halt", "--tenant", "*", "--model", "anthropic/*")

    assert "Controls of all tenants" in halted.out
    assert "HALTED: every tenant's model anthropic/*" in command("budget", "show").out


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--agent", "a", "--model", "b"),
            "--agent is given together with --model. Allowed: one of them. Halts of several scopes apply together",
        ),
        (("--workflow", "trading"), "Allowed: analysis, planning, execution, general, *"),
        (("--agent", "cmt-*"), "--agent is 'cmt-*'. Allowed: a whole name, or '*' for every agent"),
        (("--model", "claude-*"), "Allowed: a whole name, or '*' for every model, or PROVIDER/*"),
        (("--agent", ""), "it has no id. Allowed: an id, or '*' for every agent"),
        (("--tenant", ""), "it has no tenant. Allowed: "),
        (("--ledger", "localhost"), "Allowed: redis://HOST:PORT"),
    ],
)
def test_invalid_halt_names_allowed_values(words: tuple[str, ...], message: str, command: Command) -> None:
    told = command("halt", *words)

    assert (told.code, told.out) == (ExitCode.BAD_INPUT, "")
    assert message in told.err


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (
            ("--agent", "cmt-anlyst"),
            "agent cmt-anlyst: .* knows this agent. Allowed: cmt-analyst, .*or --force",
        ),
        (("--model", "rule-1"), "Allowed: rules-1, "),
        (("--model", "antropic/*"), r"Allowed: anthropic/\*, "),
        (("--tenant", "defualt"), "tenant defualt: .* Allowed: default, or --force for one to come"),
        (("--tenant", "defualt", "--agent", "cmt-analyst"), "tenant defualt: .* Allowed: default"),
    ],
)
def test_halt_of_unknown_name_suggests_nearest(
    words: tuple[str, ...], nearest: str, command: Command
) -> None:
    told = command("halt", *words)

    assert (told.code, told.out) == (ExitCode.BAD_INPUT, "")
    assert re.search(nearest, told.err), told.err
    assert "HALTED" not in command("budget", "show").out


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("words", "source"),
    [
        (("--agent", "cmt-analyst"), "the log"),
        (("--agent", "*"), "workers' reports"),
        (("--workflow", "planning"), "workers' reports"),
        (("--model", "rules-1"), "the configuration"),
        (("--model", "anthropic/*"), "the configuration"),
        (("--tenant", "*", "--agent", "cmt-analyst"), "the log"),
    ],
)
def test_halt_prints_name_source_and_workers(words: tuple[str, ...], source: str, command: Command) -> None:
    told = command("halt", *words)
    again = json.loads(command("resume", *words, "--json").out)

    assert f"no worker runs here (the name is in {source})" in told.out
    assert again["reached"] == {"known_from": "", "acknowledged": [], "missing": [], "in_flight": 0}
    assert again["halts"] == []


@pytest.mark.usefixtures("place")
def test_name_given_only_by_operator_is_unknown(command: Command) -> None:
    forced = command("halt", "--agent", "tomorrow", "--force")
    command("resume", "--agent", "tomorrow")
    command("budget", "set", "agent", "tomorrow", "--calls", 1, "--force")

    assert "HALTED                agent tomorrow by " in forced.out
    again = command("halt", "--agent", "tomorrow")
    assert (again.code, again.out) == (ExitCode.BAD_INPUT, "")
    assert "knows this agent" in again.err


@pytest.mark.usefixtures("place")
def test_unacknowledged_halt_exits_with_error(command: Command, place: Path) -> None:
    told = command("halt")

    assert told.code == ExitCode.FOUND_WRONG
    assert f"place                 {place}" in told.out
    assert f"the halt is set at {place}, but no running process acknowledged it" in told.err
    assert command("resume").code == ExitCode.DONE


def test_name_from_configured_source_is_known(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        '[principals.desk]\ntenants = ["fund", "*"]\nagents = ["bot-7", "cmt-*"]\nmodels = ["anthropic/*"]\n'
    )
    monkeypatch.setenv("AGENTIC_POLICY_FILE", str(policy))
    (tmp_path / "agentic-trading.toml").write_text('[tenants.acme]\nbudget_usd = "5"\n')
    counted = CounterStatus(
        scope=ScopeKind.AGENT, id="busy", window=Window.DAY, window_id="2026-01-02",
        most=(1, None, None), spent=(0, 0, 1), held=(0, 0, 0), in_doubt=(0, 0, 0),
    )  # fmt: skip
    report = BudgetStatus(
        worker="w-1", tenant="default", time=NOW, as_of=NOW, is_running=True, limits_version=1,
        counters=(counted,), calls=CallCounts(in_flight=3),
    )  # fmt: skip
    asyncio.run(FileStatusFeed(place).publish(report))

    def known(*words: str) -> str:
        return command("halt", *words).out.partition("reached")[2]

    assert "the name is in workers' reports" in known("--agent", "busy")
    assert "the name is in the policy" in known("--agent", "bot-7")
    assert "the name is in the policy" in known("--tenant", "fund")
    assert "the name is in the configuration" in known("--tenant", "acme")
    assert command("halt", "--agent", "cmt-*").code == ExitCode.BAD_INPUT


def test_agent_counted_only_on_server_is_known(
    command: Command, own_redis: RealServer, tmp_path: Path
) -> None:
    async def call() -> None:
        async with aclosing(await asyncio.to_thread(ledger_of, own_redis.url)) as ledger:
            await spend(ledger, ask(1, agent="counted", tenant="default"))

    asyncio.run(call())
    at = ("--ledger", own_redis.url)

    assert "the name is in the ledger" in command("halt", "--agent", "counted", *at).out
    assert "Allowed: counted, or --force" in command("halt", "--agent", "cuonted", *at).err


async def test_agent_without_id_is_known_by_type(tmp_path: Path, command: Command) -> None:
    path = tmp_path / "interactions.jsonl"
    async with aclosing(JsonFileInteractionStore(path)) as store:
        await store.store(interaction(agent_id="", agent_type="scout"))

    told = await asyncio.to_thread(command, "halt", "--agent", "scout", "--store", path)

    assert "the name is in the log" in told.out


@pytest.mark.parametrize(("scope", "name"), [("trace", "t-7"), ("call", "e-7")])
async def test_trace_and_call_are_known_by_the_index(
    scope: str, name: str, tmp_path: Path, command: Command
) -> None:
    path = tmp_path / "interactions.jsonl"
    async with aclosing(JsonFileInteractionStore(path)) as store:
        for number in range(9):
            await store.store(interaction(envelope_id=f"e-{number}", trace_id=f"t-{number}"))
    words = ("budget", "set", scope)
    typed = await asyncio.to_thread(command, *words, name[:2], "--usd", 1, "--store", path)
    assert f"Allowed: {name[:2]}8, {name}, " in typed.err
    await asyncio.to_thread(blank_lines, path, but=[8, 9])

    told = await asyncio.to_thread(command, *words, name, "--usd", 1, "--store", path)

    assert "the name is in the log" in told.out


def test_run_in_halted_folder_names_the_history(command: Command, place: Path) -> None:
    command("halt", "--why", "closed")

    told = command("run", "--data", "btcusdt-5m", "--bars", 30, "--out", place)
    history = command("budget", "history")

    assert told.code == ExitCode.DONE
    assert "no decision, analysis  halted" in told.out
    assert f"agentic-trading budget history --store {place}" in told.out
    assert "denied" in history.out
    assert "tenant default is halted by " in history.out


def test_halt_works_with_broken_policy(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "policy.toml").write_text("[principals")
    monkeypatch.setenv("AGENTIC_POLICY_FILE", str(place / "policy.toml"))

    assert "the name is in the log" in command("halt", "--agent", "cmt-analyst").out

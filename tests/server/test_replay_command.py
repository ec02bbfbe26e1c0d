"""`replay run FOLDER -- COMMAND`: unmodified programs run again on the record of their calls."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.forked import command_line, ended, environment
from tests.server.conftest import started

pytestmark = pytest.mark.timeout(120)

SDK_AGENT = """
import sys
import anthropic
import openai

asked = sys.argv[1:]
with openai.OpenAI() as client:
    for text in asked:
        answer = client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": text}])
        print(answer.choices[0].message.content)
    print(client.responses.create(model="gpt", input="Sum up.").output_text)
with anthropic.Anthropic() as client:
    message = [{"role": "user", "content": "Check it."}]
    print(client.messages.create(model="claude", max_tokens=99, messages=message).content[0].text)
"""

GATEWAY_AGENT = """
import sys
from decimal import Decimal
import agentic_trading as at

def reply(request):
    if request.user.count("die"):
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    with open("asked.txt", "a") as file:
        file.write("asked")
    return '{"side": "long"}'

folder, *asked = sys.argv[1:]
with at.local_gateway(at.ScriptedProvider(reply), budget_usd=Decimal(1), folder=folder).sync() as gateway:
    for text in asked:
        builder = at.EnvelopeBuilder().with_instructions("Judge.").with_context({"text": text}).with_agent("analyst")
        outcome = gateway.ask_structured(builder.with_provider(at.LLMProvider.SCRIPTED, "scripted-1").build())
        print(outcome.json_text)
"""


def python(place: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a Python program in `place`."""
    return subprocess.run(
        ["/usr/bin/env", *(f"{name}={text}" for name, text in variables.items()), sys.executable, *words],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def replayed(place: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `replay run` in `place`."""
    command = ("replay", "run", *words)
    with TemporaryDirectory() as folder:
        done = ended(command_line, *command, folder=Path(folder), cwd=place, env=environment(**variables))
    return subprocess.CompletedProcess(command, done.code, done.out, done.err)


@pytest.fixture
def recorded(place: Path) -> tuple[Path, dict[str, str], str]:
    """Return the folder of a record of an SDK program, its variables, and its output."""
    (place / "agent.py").write_text(SDK_AGENT)
    secret = (place / "secret.txt").read_text()
    keys = {"OPENAI_API_KEY": secret, "ANTHROPIC_API_KEY": secret}
    with started(place, "--store", "log") as (url, process):
        urls = {"OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_BASE_URL": url}
        first = python(place, "agent.py", "Judge.", "Judge.", **keys, **urls)
        assert first.returncode == 0, first.stderr
        process.ends()
    # The providers are gone: their URL answers no more.
    config = (place / "agentic-trading.toml").read_text()
    vendor = config.split('base_url = "')[1].split("/v1")[0]
    (place / "agentic-trading.toml").write_text(config.replace(vendor, "http://127.0.0.1:9"))
    return place, keys, first.stdout


def test_an_unmodified_sdk_program_gets_its_recorded_answers(
    recorded: tuple[Path, dict[str, str], str],
) -> None:
    place, keys, first = recorded
    log = (place / "log" / "interactions.jsonl").read_bytes()

    reports = []
    for _ in range(2):
        again = replayed(place, "log", "--json", "--", sys.executable, "agent.py", "Judge.", "Judge.", **keys)
        assert again.returncode == ExitCode.DONE, again.stdout + again.stderr
        assert first in again.stderr
        reports.append(json.loads(again.stdout))

    assert reports[0] == reports[1]
    assert reports[0]["digest"] == reports[0]["recorded_digest"]
    assert (reports[0]["recorded"], reports[0]["matched"]) == (4, 4)
    assert (place / "log" / "interactions.jsonl").read_bytes() == log


def test_a_changed_prompt_of_an_sdk_program_is_named_with_its_path(
    recorded: tuple[Path, dict[str, str], str],
) -> None:
    place, keys, _ = recorded

    again = replayed(place, "log", "--json", "--", sys.executable, "agent.py", "Judge.", "Guess.", **keys)

    report = json.loads(again.stdout)
    assert again.returncode == ExitCode.FOUND_WRONG
    assert (report["misses"], report["unused"], report["exit_code"]) == (1, 3, 1)
    assert 'messages[0].content: recorded "Judge.", asked "Guess."' in report["missed"][0]


def test_a_gateway_program_gets_its_recorded_answers_without_its_provider(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    for _ in range(2):
        assert python(tmp_path, "agent.py", "log", "a", "b").returncode == 0
    log = (tmp_path / "log" / "interactions.jsonl").read_bytes()
    asked = (tmp_path / "asked.txt").read_text()

    same = replayed(tmp_path, "log", "--", sys.executable, "agent.py", "log", "a", "b", "a", "b")
    fewer = replayed(tmp_path, "log", "--json", "--", sys.executable, "agent.py", "log", "a", "b", "a")
    changed = replayed(tmp_path, "log", "--json", "--", sys.executable, "agent.py", "log", "a", "b", "a", "c")

    assert same.returncode == ExitCode.DONE, same.stdout + same.stderr
    assert "4 recorded · 4 matched" in " ".join(same.stdout.split())
    assert (fewer.returncode, json.loads(fewer.stdout)["unused"]) == (ExitCode.FOUND_WRONG, 1)
    report = json.loads(changed.stdout)
    assert (changed.returncode, report["misses"], report["unused"]) == (ExitCode.FOUND_WRONG, 1, 1)
    assert "context.text: was 'b', is 'c'" in report["missed"][0]
    assert (tmp_path / "log" / "interactions.jsonl").read_bytes() == log
    assert (tmp_path / "asked.txt").read_text() == asked


def test_the_record_of_a_killed_program_is_replayed_up_to_the_kill(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    assert python(tmp_path, "agent.py", "log", "a", "die").returncode == -signal.SIGKILL

    refused = replayed(tmp_path, "log", "--", sys.executable, "agent.py", "log", "a")
    same = replayed(tmp_path, "log", "--allow-incomplete", "--", sys.executable, "agent.py", "log", "a")
    more = replayed(
        tmp_path, "log", "--allow-incomplete", "--", sys.executable, "agent.py", "log", "a", "die"
    )

    assert refused.returncode == ExitCode.LOG_UNUSABLE, refused.stderr
    assert "--allow-incomplete" in refused.stderr
    assert same.returncode == ExitCode.DONE, same.stdout + same.stderr
    assert more.returncode == ExitCode.FOUND_WRONG
    assert "1 missing" in " ".join(more.stdout.split())


def test_without_a_command_the_record_is_checked_and_the_command_is_named(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    python(tmp_path, "agent.py", "log", "a")

    whole = replayed(tmp_path, "log")
    log = tmp_path / "log" / "interactions.jsonl"
    log.write_bytes(log.read_bytes().replace(b"long", b"flat", 1))
    broken = replayed(tmp_path, "log")

    assert whole.returncode == ExitCode.DONE, whole.stderr
    assert whole.stdout.startswith("whole")
    assert "replay run log -- COMMAND" in whole.stderr
    assert broken.returncode == ExitCode.FOUND_WRONG
    assert broken.stdout.startswith("broken")


def test_wrong_words_are_refused_with_the_allowed_ones(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    python(tmp_path, "agent.py", "log", "a")
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / "run.json").write_text("{}")

    for words, message in [
        (["log", "--", "./no-such-program"], "COMMAND is './no-such-program' (No such file or directory)"),
        (["log", "--run", "2"], "--run is 2, given with a COMMAND or a folder without a run"),
        (["nowhere", "--", "python"], "where no log is"),
        (["session", "--", "python"], "COMMAND is given with session, a session of `run`"),
    ]:
        found = replayed(tmp_path, *words)
        assert found.returncode == ExitCode.BAD_INPUT
        assert message in " ".join(found.stderr.split())


def test_a_program_that_fails_is_different(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    python(tmp_path, "agent.py", "log", "a")
    (tmp_path / "failing.py").write_text(f"{GATEWAY_AGENT}\nsys.exit(3)\n")

    found = replayed(tmp_path, "log", "--json", "--", sys.executable, "failing.py", "log", "a")

    report = json.loads(found.stdout)
    assert (found.returncode, report["exit_code"], report["identical"]) == (ExitCode.FOUND_WRONG, 3, False)
    assert report["digest"] == report["recorded_digest"]


def test_another_check_of_the_same_answer_is_another_result(tmp_path: Path) -> None:
    program = GATEWAY_AGENT.replace(
        "folder=folder", 'folder=folder, checks={"side.v1": lambda *_: [at.Violation(path="$", keyword="bold", message=WORDS)] if WORDS else []}'
    ).replace(
        ".with_provider", '.with_output_schema({"$id": "side.v1", "type": "object"}).with_provider'
    ).replace("folder, *asked", "WORDS, folder, *asked")  # fmt: skip
    (tmp_path / "agent.py").write_text(program)
    first = python(tmp_path, "agent.py", "", "log", "a")
    assert first.returncode == 0, first.stderr

    found = replayed(tmp_path, "log", "--json", "--", sys.executable, "agent.py", "too bold", "log", "a")

    report = json.loads(found.stdout)
    assert (found.returncode, report["recorded"], report["different"]) == (ExitCode.FOUND_WRONG, 1, 1), report
    assert "another result than recorded: agent 'analyst'" in report["missed"][-1]


def test_a_store_is_refused_in_a_replay(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GATEWAY_AGENT)
    assert python(tmp_path, "agent.py", "log", "a").returncode == 0
    with_store = GATEWAY_AGENT.replace("folder=folder", "store=at.MemoryInteractionStore()")
    (tmp_path / "agent.py").write_text(with_store)

    found = replayed(tmp_path, "log", "--", sys.executable, "agent.py", "log", "a")

    assert found.returncode == ExitCode.FOUND_WRONG
    assert "`replay run` cannot replay a store. Give folder instead" in found.stderr

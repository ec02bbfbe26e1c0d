"""`replay run FOLDER -- COMMAND` on a record of several API keys, and with volatile texts."""

import json
import sys
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command
from tests.server.conftest import started
from tests.server.test_replay_command import python, replayed

pytestmark = pytest.mark.timeout(120)

AGENT = """
import sys
import openai

with openai.OpenAI(max_retries=0) as client:
    for text in sys.argv[1:]:
        message = [{"role": "user", "content": text}]
        try:
            answer = client.chat.completions.create(model="gpt", messages=message)
            print(answer.choices[0].message.content)
        except openai.APIStatusError as e:
            print("refused:", e.status_code, e.code)
"""


def recorded(place: Path, *runs: tuple[dict[str, str], list[str]]) -> list[str]:
    """Record a run of the program for each pair of variables and words. Return their outputs."""
    (place / "agent.py").write_text(AGENT)
    outputs = []
    with started(place, "--store", "log") as (url, server):
        for variables, words in runs:
            made = python(place, "agent.py", *words, OPENAI_BASE_URL=f"{url}/v1", **variables)
            assert made.returncode == 0, made.stderr
            outputs.append(made.stdout)
        server.ends()
    return outputs


def key_of(command: Command, name: str, tenant: str, agent: str, *more: str) -> dict[str, str]:
    """Create a key, and return the variable of its secret."""
    words = ["--tenant", tenant, "--agent", agent, "--model", "gpt=openai/stub-large", *more]
    made = command("api-keys", "create", name, *words)
    assert made.code == ExitCode.DONE, made.err
    return {"OPENAI_API_KEY": made.out.split()[-1]}


def test_the_program_of_each_key_replays_the_calls_of_its_key(place: Path, command: Command) -> None:
    config = place / "agentic-trading.toml"
    config.write_text(f'{config.read_text()}\n[tenants.beta]\nbudget_usd = "1"\n')
    desk = {"OPENAI_API_KEY": (place / "secret.txt").read_text()}
    rival = key_of(command, "rival", "acme", "trader-1")  # another key of the same agent
    other = key_of(command, "other", "beta", "trader-2")
    late = key_of(command, "late", "acme", "trader-1")
    runs = [(desk, ["@count", "two"]), (rival, ["@count"]), (other, ["@count"])]
    outputs = recorded(place, *runs)
    assert len(set(outputs)) == 3  # each request has another answer

    for name, (variables, words), output in zip(("desk", "rival", "other"), runs, outputs, strict=True):
        again = replayed(
            place, "log", "--key", name, "--json", "--", sys.executable, "agent.py", *words, **variables
        )
        report = json.loads(again.stdout)
        assert (again.returncode, report["matched"]) == (ExitCode.DONE, len(words)), again.stderr
        assert report["keys"] == {"desk": 2, "other": 1, "rival": 1}
        assert output in again.stderr

    asked = ["--", sys.executable, "agent.py", "@count"]
    whole = replayed(place, "log", *asked, **other)
    unrecorded = replayed(place, "log", "--key", "late", *asked, **late)

    assert whole.returncode == ExitCode.FOUND_WRONG
    text = " ".join(whole.stdout.split())
    assert "1 matched · 0 with another result · 0 missing · 3 unused" in text
    assert "API keys desk 2 · other 1 · rival 1. For the program of one key, use --key NAME" in text
    assert unrecorded.returncode == ExitCode.BAD_INPUT
    assert "--key is 'late', without a call in" in unrecorded.stderr
    assert "Allowed: desk, other, rival" in " ".join(unrecorded.stderr.split())


POLICY = """
[principals.house]
tenants = ["acme", "beta"]
models = ["openai/stub-large"]

[principals.guest]
tenants = ["acme"]
models = ["openai/stub-large"]

[principals.guest.highest]
usd_per_day = "0.1664"
"""


@pytest.mark.soak
def test_keys_of_two_principals_replay_their_calls_and_refusals(place: Path, command: Command) -> None:
    config = place / "agentic-trading.toml"
    signing = 'policy = "policy.toml"\nprincipals_folder = "keys"\nsign_as = "house"\n'
    config.write_text(f'{signing}{config.read_text()}\n[tenants.beta]\nbudget_usd = "0.1664"\n')
    (place / "policy.toml").write_text(POLICY)
    command("api-keys", "revoke", "desk")
    for name in ("house", "guest"):
        assert command("keys", "create", name, "--dir", "keys").code == ExitCode.DONE
    house = key_of(command, "house", "acme", "trader-1", "--principal", "house")
    guest = key_of(command, "guest", "acme", "trader-1", "--principal", "guest")
    poor = key_of(command, "poor", "beta", "trader-2", "--principal", "house")
    asked, keys = ["one", "two", "three"], [house, guest, poor]
    outputs = recorded(place, *((variables, asked) for variables in keys))
    assert [output.count("refused: 402") for output in outputs] == [0, 1, 1]

    for name, variables, output in zip(("house", "guest", "poor"), keys, outputs, strict=True):
        again = replayed(
            place, "log", "--key", name, "--json", "--", sys.executable, "agent.py", *asked, **variables
        )
        assert again.returncode == ExitCode.DONE, again.stdout + again.stderr
        assert output in again.stderr


@pytest.mark.soak
def test_a_request_matches_its_record_without_volatile_texts(place: Path) -> None:
    desk = {"OPENAI_API_KEY": (place / "secret.txt").read_text()}
    recorded(place, (desk, ["Now 10:00:01: judge.", "Rest."]))
    asked = ["--", sys.executable, "agent.py", "Now 11:22:33: judge.", "Rest."]

    missed = replayed(place, "log", *asked, **desk)
    matched = replayed(place, "log", "--volatile", "Now [0-9:]+", *asked, **desk)
    invalid = replayed(place, "log", "--volatile", "(", *asked, **desk)

    assert missed.returncode == ExitCode.FOUND_WRONG
    assert matched.returncode == ExitCode.DONE, matched.stdout + matched.stderr
    text = " ".join(matched.stdout.split())
    assert "2 recorded · 2 matched" in text
    assert "volatile 1 matched without volatile texts" in text
    assert invalid.returncode == ExitCode.BAD_INPUT
    assert "--volatile is '(', an invalid pattern" in invalid.stderr


def test_options_of_a_server_are_refused_where_they_have_no_effect(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / "run.json").write_text("{}")
    (tmp_path / "agent.py").write_text(
        "import agentic_trading as at\n"
        "with at.local_gateway(at.ScriptedProvider(['{}']), budget_usd=1, folder='log').sync():\n    pass\n"
    )
    assert python(tmp_path, "agent.py").returncode == 0
    program = ["--", sys.executable, "agent.py"]

    for words, message in [
        (["log", "--key", "desk"], "--key is 'desk', given without a COMMAND"),
        (["log", "--volatile", "a"], "--volatile is 'a', given without a COMMAND"),
        (["session", "--key", "desk"], "--key is given with a session of `run`"),
        (["log", "--volatile", "a", *program], "--volatile is given with"),
        (["log", "--key", "desk", *program], "no key, for a record without calls of `serve`"),
    ]:
        found = replayed(tmp_path, *words)
        assert found.returncode == ExitCode.BAD_INPUT, found.stdout
        assert message in " ".join(found.stderr.split())

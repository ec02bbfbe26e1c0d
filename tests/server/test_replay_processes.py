"""`replay run FOLDER -- COMMAND` for programs of several processes that ask the same."""

import json
import sys
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.server.conftest import started
from tests.server.test_replay_command import python, replayed

pytestmark = pytest.mark.timeout(120)

GATEWAY_WORKER = """
import os, sys
from decimal import Decimal
import agentic_trading as at

def reply(request):
    return f'{{"by": {os.getpid()}}}'

folder, *asked = sys.argv[1:]
with at.local_gateway(at.ScriptedProvider(reply), budget_usd=Decimal(1), folder=folder).sync() as gateway:
    for text in asked:
        builder = at.EnvelopeBuilder().with_instructions(text).with_agent("analyst")
        outcome = gateway.ask_structured(builder.with_provider(at.LLMProvider.SCRIPTED, "scripted-1").build())
        print(folder, outcome.json_text)
"""

SDK_WORKER = """
import os, sys
import openai

trace, text = sys.argv[1:]
url = os.environ["OPENAI_BASE_URL"].replace("/v1", f"/t/{trace}/v1" if trace else "/v1")
with openai.OpenAI(base_url=url, max_retries=0) as client:
    answer = client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": text}])
    print(trace, answer.choices[0].message.content)
"""

TWO = """
import subprocess, sys
workers = [
    subprocess.Popen([sys.executable, "worker.py", name, *sys.argv[3:]], stdout=subprocess.PIPE, text=True)
    for name in sys.argv[1:3]
]
outputs = [worker.communicate()[0] for worker in workers]
print("".join(outputs))
sys.exit(max(worker.returncode for worker in workers))
"""


@pytest.fixture
def two(tmp_path: Path) -> Path:
    (tmp_path / "two.py").write_text(TWO)
    (tmp_path / "worker.py").write_text(GATEWAY_WORKER)
    return tmp_path


def test_each_gateway_process_gets_the_answers_of_its_own_folder(two: Path) -> None:
    first = python(two, "two.py", "runs/a", "runs/b", "same", "same")
    assert first.returncode == 0, first.stderr

    # Started in the other order, so that only the folder decides.
    again = replayed(
        two, "runs", "--json", "--", sys.executable, "two.py", "runs/b", "runs/a", "same", "same"
    )

    assert again.returncode == ExitCode.DONE, again.stdout + again.stderr
    lines = sorted(first.stdout.split("\n"))
    assert [line for line in sorted(again.stderr.split("\n")) if line.startswith("runs/")] == lines[-4:]
    assert json.loads(again.stdout)["repeated"] == 1


def test_gateway_processes_share_the_answers_of_a_record_elsewhere(two: Path) -> None:
    first = python(two, "two.py", "runs/a", "runs/b", "same", "same")
    (two / "runs").rename(two / "kept")

    again = replayed(
        two, "kept", "--json", "--", sys.executable, "two.py", "runs/a", "runs/b", "same", "same"
    )

    report = json.loads(again.stdout)
    assert (again.returncode, report["matched"]) == (ExitCode.DONE, 4), report
    answers = [line.split(" ", 1)[1] for line in first.stdout.splitlines() if line]
    got = [line.split(" ", 1)[1] for line in again.stderr.splitlines() if line.startswith("runs/")]
    assert sorted(got) == sorted(answers)
    assert not (two / "runs").exists()


@pytest.mark.soak
def test_a_process_after_another_gets_the_answers_of_the_next_run(two: Path) -> None:
    (two / "twice.py").write_text(
        "import subprocess, sys\n"
        "for _ in range(2):\n"
        "    subprocess.run([sys.executable, 'worker.py', 'log', 'same', 'same'], check=True)\n"
    )
    first = python(two, "twice.py")

    again = replayed(two, "log", "--", sys.executable, "twice.py")

    assert again.returncode == ExitCode.DONE, again.stdout + again.stderr
    assert first.stdout in again.stdout
    shown = " ".join(again.stdout.split())
    assert "equal 1 request has several results. Each call gets the next one, in any process" in shown


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("", ""), id="unnamed"),
        pytest.param(("first", "second"), id="named", marks=pytest.mark.soak),
    ],
)
def test_processes_of_sdks_get_each_answer_once_and_with_names_their_own(
    place: Path, names: tuple[str, str]
) -> None:
    (place / "two.py").write_text(TWO)
    (place / "worker.py").write_text(SDK_WORKER)
    keys = {"OPENAI_API_KEY": (place / "secret.txt").read_text()}
    with started(place, "--store", "log") as (url, server):
        first = python(place, "two.py", *names, "@count", OPENAI_BASE_URL=f"{url}/v1", **keys)
        assert first.returncode == 0, first.stderr
        server.ends()

    again = replayed(
        place, "log", "--json", "--", sys.executable, "two.py", *reversed(names), "@count", **keys
    )

    report = json.loads(again.stdout)
    assert (again.returncode, report["matched"]) == (ExitCode.DONE, 2), again.stderr
    answers = sorted(line for line in first.stdout.splitlines() if line)
    assert len(set(answers)) == 2
    assert [line for line in sorted(again.stderr.splitlines()) if "Answer" in line] == answers
    assert report["repeated"] == (0 if names[0] else 1)

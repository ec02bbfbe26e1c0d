"""The Python examples of the page about agents, with a server and a stub of the vendors."""

import json
import subprocess
import sys
from pathlib import Path
from shutil import which

import openai
import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command
from tests.pages import BLOCKS, Block
from tests.server.conftest import started
from tests.stubs.vendor_api import ARGUMENTS

PAGE = "docs/how-to/use-your-own-agent.md"
EXAMPLES = [
    block
    for block in BLOCKS
    if block.page == PAGE and block.language == "python" and "langchain" not in block.text
]


def ended_example(python: Path | str, block: Block, place: Path) -> "subprocess.CompletedProcess[str]":
    """Run an example of the page with a server of its own."""
    secret = (place / "secret.txt").read_text()
    text = block.text.replace('"gpt-5-mini"', '"gpt"')
    with started(place) as (url, _):
        env = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_BASE_URL": url,
            "OPENAI_API_KEY": secret,
            "ANTHROPIC_API_KEY": secret,
        }
        return subprocess.run(
            [python, "-c", text], env=env, cwd=place, capture_output=True, text=True, check=False
        )


def test_page_has_an_example_for_each_sdk_and_for_roles() -> None:
    assert [block.text.split()[1] for block in EXAMPLES] == ["openai", "anthropic", "os"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_example_of_the_page_gets_its_answer(block: Block, place: Path) -> None:
    ended = ended_example(sys.executable, block, place)

    assert (ended.returncode, ended.stderr) == (0, "")
    assert any(part in ended.stdout for part in ("direction='up'", "Trend up", ARGUMENTS))


@pytest.mark.skipif(which("curl") is None, reason="curl is not installed")
@pytest.mark.timeout(120)
def test_commands_of_the_page_record_an_order_and_its_fill(place: Path, command: Command) -> None:
    [block] = [each for each in BLOCKS if each.page == PAGE and "venue.fill" in each.text]
    rights = ["--tenant", "acme", "--agent", "a", "--model", "gpt=openai/stub-large", "--records-events"]
    made = command("api-keys", "create", "desk-agent", *rights)
    assert made.code == ExitCode.DONE, made.err
    secret = made.out.split()[-1]
    with started(place, "--store", "runs/server") as (url, _):
        with openai.OpenAI(base_url=f"{url}/v1", api_key=secret) as client:
            answer = client.responses.create(model="gpt", input="Judge.")
        env = {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": secret,
            "ANSWER_ID": answer.id,
        }
        ended = subprocess.run(
            ["/bin/sh", "-ec", block.text], env=env, cwd=place, capture_output=True, text=True, check=False
        )

    assert ended.returncode == 0, ended.stderr
    lines = (place / "runs/server/interactions.jsonl").read_text().splitlines()
    bodies = {row["kind"]: row["body"] for row in map(json.loads, lines) if "kind" in row}
    assert bodies["venue.fill"]["price"] == "120.08"
    assert "call.general" in ended.stdout
    assert "venue.order" in ended.stdout

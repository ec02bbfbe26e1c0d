"""The Python examples of the page about agents, with a server and a stub of the vendors."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import BLOCKS, Block
from tests.server.conftest import started
from tests.stubs.vendor_api import ARGUMENTS

PAGE = "docs/how-to/use-your-own-agent.md"
EXAMPLES = [
    block
    for block in BLOCKS
    if block.page == PAGE and block.language == "python" and "langchain" not in block.text
]


def test_page_has_an_example_for_each_sdk_and_for_roles() -> None:
    assert [block.text.split()[1] for block in EXAMPLES] == ["openai", "anthropic", "os"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_example_of_the_page_gets_its_answer(block: Block, place: Path) -> None:
    secret = (place / "secret.txt").read_text()
    text = block.text.replace('"gpt-5-mini"', '"gpt"')
    with started(place) as (url, _):
        env = {
            "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_BASE_URL": url,
            "OPENAI_API_KEY": secret,
            "ANTHROPIC_API_KEY": secret,
        }
        ended = subprocess.run(
            [sys.executable, "-c", text], env=env, cwd=place, capture_output=True, text=True, check=False
        )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert any(part in ended.stdout for part in ("direction='up'", "Trend up", ARGUMENTS))

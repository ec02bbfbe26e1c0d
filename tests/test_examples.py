"""What the pages show as Python runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = {
    f"{page.name}-{number}": code
    for page in (ROOT / "README.md", ROOT / "docs" / "embedding.md", ROOT / "docs" / "structured.md")
    for number, code in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), start=1)
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout


def test_the_pages_have_examples() -> None:
    assert len(EXAMPLES) >= 4

"""The first Python of the README, in a file and cell by cell in a notebook, where a loop is running already."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
FIRST = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)[0]
PRINTED = "direction='up' confidence=0.7\n"
CELLS = re.split(r"\n\n+(?=\S)", FIRST)


def outputs(*cells: str) -> list[str]:
    """Return what each cell of a notebook prints or shows, run in an IPython kernel."""
    cell: dict[str, Any] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    made = {
        "cells": [{**cell, "source": source} for source in cells],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 4,
    }
    book = nbformat.reads(json.dumps(made), as_version=4)
    NotebookClient(book, timeout=60, kernel_name="python3").execute()
    return [
        "".join(
            one["text"] if one["output_type"] == "stream" else one["data"]["text/plain"]
            for one in cell["outputs"]
        )
        for cell in book["cells"]
    ]


@pytest.mark.timeout(60)
def test_readme_example_prints_only_the_answer(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(FIRST, encoding="utf-8")

    run = subprocess.run(
        [sys.executable, "-W", "error", "first.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (run.returncode, run.stdout, run.stderr) == (0, PRINTED, "")


@pytest.mark.timeout(120)  # a kernel starts
def test_notebook_runs_the_readme_cells() -> None:
    *before, printing = [*CELLS, "answer"][-2:]
    shown = outputs(*CELLS, "answer")

    assert len(CELLS) > 4
    assert before == [CELLS[-1]]
    assert printing == "answer"
    assert shown[:-2] == [""] * (len(CELLS) - 1)
    assert shown[-2] == PRINTED
    assert re.fullmatch(
        r"Answer\(Trend\(direction='up', confidence=0\.7\), attempts=1, cost_nusd=\d+\)", shown[-1]
    )


@pytest.mark.timeout(120)  # a kernel starts
def test_notebook_cells_share_a_gateway() -> None:
    opening = FIRST[: FIRST.index("with ")] + (
        "import asyncio\nassert asyncio.get_running_loop().is_running()\n"
        'gateway = at.local_gateway(at.ScriptedProvider(lambda _: \'{"direction": "up", "confidence": 0.7}\'), '
        'budget_usd=Decimal("0.50")).sync()'
    )
    asking = 'bool(gateway.decide("Judge.", output=Trend, model="scripted/scripted-1"))'

    assert outputs(opening, asking, asking, "gateway.close()") == ["", "True", "True", ""]


@pytest.mark.timeout(120)  # a kernel starts
def test_interrupted_cell_closes_the_gateway() -> None:
    opening = FIRST[: FIRST.index("with ")] + (
        "import asyncio, signal, threading\n"
        "class Hanging(at.ScriptedProvider):\n"
        "    async def complete(self, request):\n"
        "        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)\n"
        "        await asyncio.get_running_loop().create_future()\n"
        "    async def aclose(self):\n"
        "        print('closed')\n"
    )
    asking = (
        "try:\n"
        '    with at.local_gateway(Hanging([]), budget_usd=Decimal("0.50")).sync() as gateway:\n'
        '        gateway.decide("Judge.", output=Trend, model="scripted/scripted-1")\n'
        "except KeyboardInterrupt:\n"
        "    print('interrupted')"
    )

    assert outputs(opening, asking)[1] == "closed\ninterrupted\n"

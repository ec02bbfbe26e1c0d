"""The demo shows what it says, and would say so if it did not."""

import re
import sys
from pathlib import Path

import pytest

from agentic_trading.cli import output
from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.analysis.analyst import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.cli.demo import OTHER_WORD, json_repair_result, tamper, with_another_word
from agentic_trading.llm.envelope import EnvelopeWorkflow
from tests.build import envelope
from tests.cli.conftest import Command


def test_the_steps_come_out_as_they_should(command: Command) -> None:
    ended = command("demo")

    assert ended.code == ExitCode.DONE
    assert re.search(r"of them malformed: [1-9]", ended.out)
    assert "every cause is on record" in ended.out
    assert "is not as it was written" in ended.out
    assert ended.out.index("identical, byte for byte") < ended.out.index("\ndifferent")
    assert f"is …'{OTHER_WORD} " in ended.out
    assert re.search(r"this package reads +truncated: ", ended.out)
    assert ended.out.index("accepted here: 0.") > ended.out.index("Step 3")


def test_in_a_narrow_window_no_line_loses_its_indentation(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "WIDTH_OF_A_PIPE", 80)

    lines = command("demo").out.splitlines()
    titles = ("A session", "Step ", "why ", "identical", "different", "The same", *"12345678")

    assert [line for line in lines if line and not line.startswith((" ", *titles))] == []


def test_what_the_demo_says_of_json_repair_is_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    now = json_repair_result()
    monkeypatch.setitem(sys.modules, "json_repair", None)
    without_it = json_repair_result()

    assert without_it[:2] == now[:2]
    assert "not installed here" in without_it[2]


def test_a_tampered_log_differs_in_one_byte_of_one_line(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", tmp_path / "copy"
    log.write_bytes(b'{"a":1}\n{"fill_id":"f-1","price":"27.50","n":1}\n{"b":2}\n')

    change = tamper(log, copy, "f-1")

    assert (change.line, change.before, change.after) == (2, "27.50", "27.51")
    changed = [pair for pair in zip(log.read_bytes(), copy.read_bytes(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1


def test_the_analyst_is_not_told_so_already() -> None:
    assert OTHER_WORD not in CMT_ASSESSMENT_PROMPT.text.split()


@pytest.mark.parametrize(
    ("workflow", "text"),
    [(EnvelopeWorkflow.ANALYSIS, f"{OTHER_WORD} judge."), (EnvelopeWorkflow.GENERAL, "You judge.")],
)
def test_only_the_analyst_is_told_otherwise(workflow: EnvelopeWorkflow, text: str) -> None:
    asked = with_another_word(envelope(workflow=workflow, instructions="You judge."))

    assert asked.instructions == text
    assert asked.is_intact

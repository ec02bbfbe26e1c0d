"""`make run` shows what it says it shows: every kind of fault hits at least one answer, and orders are filled."""

import re
from pathlib import Path

import pytest

from agentic_trading.desk.session.report import RunReport
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[3]
RULES = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.timeout(30)  # the whole sample, as `make run` plays it
def test_make_run_hits_every_fault(command: Command) -> None:
    asked = re.search(r"--data (\S+) .*\n.* --inject (\S+) --seed \$\(SEED\)", RULES)
    seed = re.search(r"^SEED := (\w+)$", RULES, re.MULTILINE)
    assert asked
    assert seed

    words = ["run", "--data", asked[1], "--inject", asked[2], "--seed", seed[1], "--out", "demo", "--json"]
    report = RunReport.model_validate_json(command(*words).out)

    assert sorted(report.injected) == ["cut", "malformed", "refusal", "timeout"]
    assert all(report.injected.values())
    assert report.fills > 0
    assert command("trace", "why", shown_id("README.md", "runs/rules"), "--store", "demo").code == 0


def test_fill_id_in_cli_docs_exists(session: Path, command: Command) -> None:
    assert (
        command("trace", "why", shown_id("docs/reference/cli.md", "runs/first"), "--store", session).code == 0
    )


def shown_id(page: str, store: str) -> str:
    """Return the id that a page's command asks about."""
    [found] = re.findall(rf"trace why (\S+) --store {store}", (ROOT / page).read_text(encoding="utf-8"))
    return str(found)

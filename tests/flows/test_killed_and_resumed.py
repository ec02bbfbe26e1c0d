"""A run in a folder that is killed at every step of a call and resumed keeps its limit, by the invoice of who was paid."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.killed_runs import MODES, STUB, kill_and_resume
from tests.stubs.running import serving

pytestmark = [pytest.mark.timeout(120), pytest.mark.soak]  # six starts of the program, one after another


@pytest.fixture(scope="module")
def stub() -> Iterator[str]:
    with serving(STUB) as address:
        yield address


@pytest.mark.parametrize("mode", MODES)
def test_invoice_stays_within_limit_after_kills(mode: str, stub: str, tmp_path: Path) -> None:
    run = kill_and_resume(tmp_path, mode, stub)

    assert run.kills == 5
    assert run.overspend == 0, run
    assert run.missing == 0, run

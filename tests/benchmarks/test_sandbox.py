"""The benchmark of the sandbox: every family is measured, and a set that does not run is a problem."""

import math

import numpy as np
import pytest

from agentic_trading.desk.planning.panel import Panel, load_panel
from agentic_trading.desk.planning.params import FAMILIES, Family
from agentic_trading.desk.planning.sandbox import Sandbox, SandboxLimits
from benchmarks.sandbox import STEPS, judge, main, measure, sets_of


@pytest.mark.soak  # eight seconds of a benchmark that nothing else waits for
def test_every_family_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick"])

    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line]
    assert [row for row in rows if row in FAMILIES] == list(FAMILIES)


@pytest.mark.timeout(60)  # starts processes, each of which loads numpy
@pytest.mark.parametrize(
    "family",
    [FAMILIES[0], *(pytest.param(family, marks=pytest.mark.soak) for family in FAMILIES[1:])],
)
def test_family_keeps_promises_without_time_limit(family: Family) -> None:
    assert judge(family, load_panel(), 2, 0.0, most_ms=math.inf) == []


def test_slow_family_is_a_problem() -> None:
    (slow,) = judge("momentum", load_panel(), 2, 0.0, most_ms=0.5)

    assert slow.startswith("momentum: ")
    assert slow.endswith(" ms of CPU a set; allowed: 0")


def test_stopped_set_is_a_problem_with_reason() -> None:
    (params,) = sets_of("momentum", load_panel(), 1)
    days = np.datetime64("2020-01-01", "D") + np.arange(10)
    short = Panel.of("ten days", days, ["A", "B"], {"close": np.ones((10, 2))})

    with Sandbox(short, SandboxLimits(memory_bytes=1 << 20)) as sandbox:
        steps, wrong = measure(params, sandbox, short)

    assert len(steps) == len(STEPS)
    assert len(wrong) == 1
    assert str(wrong[0]).startswith("memory: ")

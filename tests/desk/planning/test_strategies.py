"""Strategies as they are: sets of every family, through gate and sandbox over the shipped panel, keep what they promise."""

from collections.abc import Iterator

import pytest

from agentic_trading.desk.planning.allowlist import code_problems
from agentic_trading.desk.planning.panel import Panel, load_panel
from agentic_trading.desk.planning.params import FAMILIES, Family
from agentic_trading.desk.planning.promises import (
    Promise,
    WeightRules,
    broken_by_header,
    broken_by_look_ahead,
    broken_promises,
)
from agentic_trading.desk.planning.sandbox import Completed, Sandbox, SandboxJob
from agentic_trading.desk.planning.template import TEMPLATES
from benchmarks.sandbox import sets_of

SETS = 15


@pytest.fixture(scope="module")
def panel() -> Panel:
    return load_panel()


@pytest.fixture(scope="module")
def sandbox(panel: Panel) -> Iterator[Sandbox]:
    with Sandbox(panel) as sandbox:
        yield sandbox


@pytest.mark.parametrize("family", FAMILIES)
def test_random_sets_keep_every_promise(family: Family, panel: Panel, sandbox: Sandbox) -> None:
    invested = 0
    for params in sets_of(family, panel, SETS):
        code = TEMPLATES[family].generate_code(params, data_sha256=panel.sha256)
        job = SandboxJob.of(code, params, panel.days)

        outcome = sandbox.run(job)

        assert code_problems(code) == ()
        assert isinstance(outcome, Completed), params
        rules = WeightRules.of(params)
        assert broken_promises(outcome.weights, panel.filled, job.rebalance, rules) == (), params
        assert broken_by_header(code, params) == ()
        invested += bool(outcome.weights.any())
    assert invested > SETS / 2


# The check runs a set up to 240 times, and the first set shows the same lines of each template.
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_template_looks_ahead(family: Family, number: int, panel: Panel, sandbox: Sandbox) -> None:
    params = sets_of(family, panel, 2)[number]
    code = TEMPLATES[family].generate_code(params)

    assert broken_by_look_ahead(sandbox.run, SandboxJob.of(code, params, panel.days)) == (), params


@pytest.mark.parametrize("family", FAMILIES)
def test_planted_last_close_fails_both_checks(family: Family, panel: Panel, sandbox: Sandbox) -> None:
    (params,) = sets_of(family, panel, 1)
    code = TEMPLATES[family].generate_code(params)
    planted = code.replace("    return weights\n", "    return np.where(close > close[-1], weights, 0.0)\n")

    found = broken_by_look_ahead(sandbox.run, SandboxJob.of(planted, params, panel.days))

    assert code_problems(planted) == ()
    assert planted != code
    assert [each.promise for each in found] == [Promise.TRUNCATION, Promise.ALTERATION]


def test_foreign_header_is_broken_promise(panel: Panel) -> None:
    ours, others = sets_of("momentum", panel, 2)
    code = TEMPLATES["momentum"].generate_code(ours)

    (found,) = broken_by_header(code, others)

    assert found.promise is Promise.HEADER
    assert found.message == f"the header names other parameters; allowed: {others.canonical}"
    assert broken_by_header("", ours)
    assert broken_by_header(f"# {others.canonical}\n{code}", ours)


@pytest.mark.parametrize("family", FAMILIES)
def test_effective_set_has_equal_weights(family: Family, panel: Panel, sandbox: Sandbox) -> None:
    others = 0
    for params in sets_of(family, panel, SETS):
        weights = []
        for each in (params, params.effective):
            ran = sandbox.run(SandboxJob.of(TEMPLATES[family].generate_code(each), each, panel.days))
            assert isinstance(ran, Completed)
            weights.append(ran.weights)
        others += params != params.effective
        assert (weights[0] == weights[1]).all()
    assert others or family == "mean_reversion"

"""An answer becomes code that is the same byte for byte, or a list of what is wrong with it; nothing is run."""

import ast
import json
import subprocess
import sys
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.canonical import sha256_hex
from agentic_trading.desk.planning import (
    TEMPLATES,
    BaseTemplate,
    GenerationFailedError,
    MomentumTemplate,
    PanelFacts,
    TemplateCodeGenerator,
    TemplateError,
    TemplateParameterGenerator,
    VolatilityTemplate,
    code_problems,
    offered_by,
    read_params,
)
from agentic_trading.desk.planning.generator import GenerationResult, reasoning_in
from agentic_trading.desk.planning.params import Family, MomentumStrategyParams
from tests.desk.planning.sets import EXAMPLE, REASON, VALID, all_sets, answer

MOMENTUM = TemplateCodeGenerator(MomentumTemplate())
SAMPLE = offered_by(PanelFacts("sp500-sample", bars=245, sha256="5" * 64))
APART = answer(reasoning=None)


def generated(text: str) -> GenerationResult:
    """Return what the momentum template makes of an answer."""
    return MOMENTUM.generate(text)


def wrong(text: str) -> list[tuple[str, str]]:
    """Return the fields of an answer that are wrong, and how."""
    result = generated(text)
    assert (result.success, result.code, result.params) == (False, None, None)
    return [(error.field_path, error.error_type) for error in result.errors]


def test_example_code_is_deterministic() -> None:
    result = generated(EXAMPLE)

    assert (result.success, result.errors, result.get_feedback_prompt()) == (True, [], "")
    assert result.params == read_params(VALID)
    assert (
        result.code
        == generated(EXAMPLE).code
        == TemplateCodeGenerator(MomentumTemplate()).generate(EXAMPLE).code
    )
    assert result.reasoning == json.loads(EXAMPLE)["reasoning"]
    assert code_problems(str(result.code)) == ()


@pytest.mark.parametrize(
    "text",
    [
        answer(),
        f"```json\n{answer()}\n```",
        f"Here are the parameters:\n\n{answer()}\n\nGood luck.",
        f"REASONING:\n{REASON}\n\nJSON:\n{APART}",
        f"REASONING: {REASON}\n\n{APART}",
        f"REASONING:\n{REASON}\n\n```json\n{APART}\n```",
    ],
    ids=["whole", "fenced", "in prose", "apart", "apart without a label", "apart and fenced"],
)
def test_reasoning_accepted_inside_or_before_object(text: str) -> None:
    result = generated(text)

    assert (result.success, result.reasoning, result.params) == (True, REASON, read_params(VALID))
    assert reasoning_in(text) == (REASON if "REASONING" in text else "")
    assert reasoning_in(f"REASONING: {REASON}") == ""


def test_separate_reasoning_is_checked_but_secondary() -> None:
    assert wrong(f"REASONING: it is good\n\n{APART}") == [("reasoning", "too_short")]
    assert wrong(APART) == [("reasoning", "missing_field")]
    assert generated(f"REASONING: {'y' * 60}\n\n{answer()}").reasoning == REASON


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("I would rather not say.", [("answer", "parse_error")]),
        (EXAMPLE[:-40], [("answer", "parse_error")]),
        (f"{answer()}\n{answer({**VALID, 'n_stocks': 20})}", [("answer", "parse_error")]),
        (EXAMPLE.replace("0.10,", "10%,"), [("answer", "parse_error")]),
        (EXAMPLE.replace("20,", "20, // days\n"), []),
        (answer({**VALID, "stop_loss": "10%"}), [("params.stop_loss", "type_error")]),
        (
            answer({name: value for name, value in VALID.items() if name != "n_stocks"}),
            [("params.n_stocks", "missing_field")],
        ),
        (answer({**VALID, "momentum_period": 25}), [("params.momentum_period", "invalid_value")]),
        (answer({**VALID, "leverage": 2}), [("params.leverage", "unknown_field")]),
        (answer(reasoning="short"), [("reasoning", "too_short")]),
        (answer(reasoning="x" * 501), [("reasoning", "too_long")]),
        (
            answer({**VALID, "momentum_period": 30, "ma_periods": 20}),
            [("params.momentum_period", "inconsistent")],
        ),
        (answer({**VALID, "strategy_type": "volatility"}), [("params.strategy_type", "invalid_value")]),
        (answer([VALID]), [("params", "type_error")]),
        ("[]", [("answer", "type_error")]),
    ],
)
def test_each_error_kind_gives_single_item(text: str, errors: list[tuple[str, str]]) -> None:
    if errors:
        assert wrong(text) == errors
    else:
        assert generated(text).success


def test_feedback_suggests_values_and_defaults() -> None:
    missing = {name: value for name, value in VALID.items() if name != "n_stocks"}

    prompt = generated(answer({**missing, "momentum_period": 25, "stop_loss": "10%"})).get_feedback_prompt()

    assert "**params.n_stocks**: Missing field" in prompt
    assert "Suggestion: Use 15 (default)" in prompt
    assert "Suggestion: Use 20 (closest valid value)" in prompt
    assert 'Suggestion: Use 0.10 instead of "10%"' in prompt


@pytest.mark.parametrize("family", TEMPLATES)
def test_template_defaults_are_valid(family: Any) -> None:
    template = TEMPLATES[family]

    result = TemplateCodeGenerator(template).generate(answer(dict(template.DEFAULTS)))

    assert result.success
    assert result.params == read_params({"strategy_type": family, **template.DEFAULTS})
    assert code_problems(str(result.code)) == ()


def test_header_names_parameters_template_data() -> None:
    template = MomentumTemplate()
    params = read_params(VALID)

    code = template.generate_code(params, data_sha256="d" * 64)

    header, body = code.split("\n\n", 1)
    assert all(line.startswith("# ") for line in header.splitlines())
    assert f"sha256 {template.sha256}" in header
    assert f"sha256 {params.sha256}" in header
    assert f"sha256 {'d' * 64}" in header
    assert f"# {params.canonical}" in header
    assert body.startswith("import numpy as np\n")
    assert "not named" in template.generate_code(params)


def test_unused_parameters_change_only_header() -> None:
    one, other = (
        MomentumTemplate().generate_code(read_params({**VALID, **changed}))
        for changed in ({}, {"stop_loss": 0.15, "resample": "M", "resample_offset": 4})
    )

    assert one != other
    assert one.partition("import")[2] == other.partition("import")[2]


def test_code_follows_offered_data() -> None:
    generator = TemplateCodeGenerator(MomentumTemplate(), SAMPLE)

    (error,) = generator.generate(EXAMPLE).errors
    assert (error.field_path, error.allowed_values) == ("params.catalyst_type", ["none", "volume"])
    volume = generator.generate(answer({**VALID, "catalyst_type": "volume"}))
    assert "volume > 2 * rolling_mean(volume, 20)" in str(volume.code)
    assert f"sha256 {'5' * 64}" in str(volume.code)
    none = generator.generate(answer({**VALID, "catalyst_type": "none"}))
    assert "events =" not in str(none.code)
    missing = {name: value for name, value in VALID.items() if name != "catalyst_type"}
    assert 'Use "none" (default)' in generator.generate(answer(missing)).get_feedback_prompt()


def test_code_defines_single_weights_function() -> None:
    for family, template in TEMPLATES.items():
        tree = ast.parse(template.generate_code(read_params({"strategy_type": family, **template.DEFAULTS})))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert names.count("target_weights") == 1
        assert len(names) == 8


class OwnTemplate(BaseTemplate):
    """A template with a text of its own."""

    family: ClassVar[Family] = "momentum"
    PARAM_GRID = MomentumTemplate.PARAM_GRID
    DEFAULTS = MomentumTemplate.DEFAULTS

    def __init__(self, source: str) -> None:
        self._source = source

    @property
    def source(self) -> str:
        return self._source


def test_undefined_variable_is_named() -> None:
    with pytest.raises(TemplateError, match="'momentum_perod' is undefined") as raised:
        TemplateCodeGenerator(OwnTemplate("x = {{ momentum_perod }}")).generate(EXAMPLE)

    assert raised.value.template == "momentum"
    with pytest.raises(TemplateError, match="momentum cannot be rendered"):
        TemplateCodeGenerator(OwnTemplate("{% if %}"))


def test_gate_checks_custom_template_code() -> None:
    code = TemplateCodeGenerator(OwnTemplate("import os\n")).generate(EXAMPLE).code

    assert [problem.message for problem in code_problems(str(code))] == [
        "there must be exactly one function target_weights(close, volume, catalyst, rebalance)",
        "this import is not allowed; allowed: import numpy as np, at the top",
    ]


def test_parameters_of_other_family_are_rejected() -> None:
    with pytest.raises(TemplateError, match=r"the parameters are of momentum\. Allowed: volatility"):
        VolatilityTemplate().generate_code(read_params(VALID))


def test_planning_import_loads_no_extra() -> None:
    heavy = "{'jinja2', 'numpy', 'matplotlib'} & set(sys.modules)"
    asked = f"import sys, agentic_trading.desk.session.trading, agentic_trading.desk.planning; print({heavy})"

    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, timeout=15, check=True
    )

    assert done.stdout == "set()\n"


@given(st.text() | st.text(alphabet='{}[]":,ab 0\n'))
def test_arbitrary_text_gives_validation_errors(text: str) -> None:
    result = generated(text)

    assert (result.success, bool(result.errors)) == (False, True)
    assert result.get_feedback_prompt().startswith("## VALIDATION ERRORS")


def test_text_prompt_has_form_and_history() -> None:
    generator = TemplateParameterGenerator(MomentumTemplate(), SAMPLE)

    prompt = generator._build_prompt([{"params": VALID, "sharpe": 0.5}])

    assert '"momentum_period": 5 | 10 | 20 | 30' in prompt
    assert '"catalyst_type": "none" | "volume"' in prompt
    assert '"sharpe":0.5' in prompt
    assert "revenue, earnings not offered" in prompt
    assert generator._build_prompt() == generator._build_prompt()


def test_generator_returns_parameters_or_raises() -> None:
    generator = TemplateParameterGenerator(MomentumTemplate())

    assert generator.generate_parameters(EXAMPLE) == read_params(VALID)
    with pytest.raises(GenerationFailedError, match="momentum_period") as raised:
        generator.generate_parameters(answer({**VALID, "momentum_period": 25}))
    assert [error.field_path for error in raised.value.errors] == ["params.momentum_period"]


@pytest.mark.parametrize(
    "period", [30, *(pytest.param(period, marks=pytest.mark.soak) for period in (5, 10, 20))]
)
def test_every_valid_momentum_set_passes_gate(period: int) -> None:
    valid = refused = 0
    bodies = set()
    for chosen in all_sets(MomentumStrategyParams):
        if chosen["momentum_period"] != period:
            continue
        result = generated(answer(chosen))
        if chosen["momentum_period"] > chosen["ma_periods"]:
            assert [(error.field_path, error.suggestion) for error in result.errors] == [
                ("params.momentum_period", "Use 20 (closest valid value)")
            ]
            refused += 1
            continue
        assert result.params == MomentumStrategyParams.model_validate(chosen)
        assert code_problems(str(result.code)) == ()
        bodies.add(sha256_hex(str(result.code).partition("import")[2].encode()))
        valid += 1

    assert (valid, refused, len(bodies)) == ((3_840, 1_280, 48) if period == 30 else (5_120, 0, 64))


def test_long_blanks_in_reasoning_are_kept() -> None:
    blanks = " " * 100_000

    assert reasoning_in(f"REASONING: {blanks}x{blanks}y\n{answer()}") == f"x{blanks}y"

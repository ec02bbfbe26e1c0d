"""A family that is used from Python, without a package."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.desk.planning.errors import FamilyError, UnknownFamilyError
from agentic_trading.desk.planning.families import drop_family, load_family, template_of, use_family
from agentic_trading.desk.planning.params import (
    PlanTerms,
    StrategyParamRequest,
    families_in_use,
    family_terms,
    grid_of,
    read_params,
)
from agentic_trading.desk.planning.rules import strategy_params_rule
from agentic_trading.desk.planning.schema import (
    AvailableParams,
    PanelFacts,
    answer_schema,
    check_shipped_params,
    check_strategy_params,
)
from agentic_trading.desk.planning.template import BaseTemplate
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import FailureKind, ProviderError
from tests.desk.cli.test_own_families import NEAR_HIGH, SET


@pytest.fixture
def near_high() -> Iterator[BaseTemplate]:
    module: dict[str, Any] = {"__name__": "near_high"}
    exec(compile(NEAR_HIGH, "near_high.py", "exec"), module)  # noqa: S102 - the file of our own page
    yield use_family(module["NearHigh"]())
    drop_family("near_high")


def test_set_of_family_in_use_is_read(near_high: BaseTemplate) -> None:
    params = read_params(SET)
    request = StrategyParamRequest.model_validate({"reasoning": "x" * 60, "params": SET})

    assert request.params == params == params.effective
    assert family_terms("near_high").classes == near_high.PARAMS
    assert template_of("near_high") is near_high
    with pytest.raises(ValueError, match=r"trend_days \(40\) must be less than high_days"):
        read_params({**SET, "trend_days": 40})


def test_dropped_family_is_unknown(near_high: BaseTemplate) -> None:
    drop_family(near_high.family)
    drop_family("momentum")  # a shipped family stays

    assert load_family("momentum") is template_of("momentum")
    for use in (template_of, family_terms, load_family):
        with pytest.raises(UnknownFamilyError, match="no strategy family is called 'near_high'"):
            use("near_high")
    with pytest.raises(ValueError, match="strategy_type"):
        read_params(SET)


def test_shipped_name_is_refused() -> None:
    class Again(BaseTemplate):
        family = "momentum"

    with pytest.raises(FamilyError, match="its name must have 1 to 40 lower-case letters"):
        use_family(Again())


def test_validated_set_is_taken_as_it_is(near_high: BaseTemplate) -> None:
    params = read_params(SET)

    request = StrategyParamRequest.model_validate({"reasoning": "x" * 60, "params": params})

    assert request.params is params


def test_source_hash_covers_the_text_of_the_template(near_high: BaseTemplate) -> None:
    class Other(type(near_high)):  # type: ignore[misc]
        source = near_high.source.replace("nearness > 0", "nearness > 0.5")

    before = family_terms("near_high").source_sha256
    use_family(Other())

    assert family_terms("near_high").source_sha256 != before
    assert len(before) == 64
    assert families_in_use() == ("momentum", "mean_reversion", "volatility", "near_high")
    assert family_terms("momentum").source_sha256 == ""


def envelope_of(near_high: BaseTemplate) -> LLMEnvelope:
    """Return a question about the family."""
    grid = grid_of(*near_high.PARAMS)
    offered = AvailableParams(PanelFacts("any"), {"near_high": grid}, ())
    builder = EnvelopeBuilder(clock=SimClock(datetime(2026, 1, 1, tzinfo=UTC))).for_planning()
    builder.with_instructions("Choose.", prompt_version="v1").with_subject("any", step="round-1")
    builder.with_as_of(datetime(2026, 1, 1, tzinfo=UTC)).with_context({"round": 1})
    builder.add_evidence("tried", {"best": [], "last": []}, available_at=datetime(2026, 1, 1, tzinfo=UTC))
    builder.with_output_schema(answer_schema(offered, ("near_high",))).with_agent("planner", "planner")
    return builder.with_provider(LLMProvider.RULES, "rules-1").build()


def test_worker_without_the_family_leaves_its_rules_to_the_planner(near_high: BaseTemplate) -> None:
    envelope = envelope_of(near_high)
    answer = json.dumps({"reasoning": "x" * 60, "params": {**SET, "trend_days": 40}})

    (here,) = check_strategy_params(envelope, answer)
    assert here.message == "trend_days (40) must be less than high_days (40)"
    assert check_shipped_params(envelope, answer) == []

    drop_family("near_high")
    assert check_strategy_params(envelope, answer) == []


def test_rules_without_the_family_refuse_before_a_charge(near_high: BaseTemplate) -> None:
    envelope = envelope_of(near_high)
    assert '"near_high"' in strategy_params_rule(envelope)

    drop_family("near_high")

    with pytest.raises(ProviderError, match=r"strategy family 'near_high': this process has not") as refused:
        strategy_params_rule(envelope)
    assert (refused.value.kind, refused.value.sent) == (FailureKind.INVALID_REQUEST, False)


def test_terms_of_a_shipped_family_are_on_record_as_before() -> None:
    assert PlanTerms().on_record == {"family": "momentum", "rounds": 5}
    own = PlanTerms(family="momentum", source_sha256="ab" * 32)
    assert own.on_record["source_sha256"] == "ab" * 32

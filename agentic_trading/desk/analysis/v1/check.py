"""The rules of a v1 answer that its JSON Schema cannot say."""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from agentic_trading.desk.analysis.context import Context, evidence_by_layer, evidence_names
from agentic_trading.desk.analysis.judgement import Direction
from agentic_trading.desk.analysis.plan import PlanPrices, plan_violations
from agentic_trading.desk.analysis.v1.judgement import JudgementV1, LayerJudgementV1
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.result import Violation


def check_cmt_assessment_v1(envelope: LLMEnvelope, text: str) -> list[Violation]:
    """Return every rule that an answer to `envelope` breaks, always in the same order; nothing is changed.

    Cited evidence exists. A layer is unavailable if and only if its evidence is missing, and then says
    nothing; otherwise it has a finding. No layer scores for a direction that it contradicts, or against its
    own. There is a plan if and only if the direction is not neutral; its prices lie on their sides of the
    entry and within the limits of the context.
    """
    try:
        judgement = JudgementV1.model_validate_json(text)
    except ValidationError as e:
        return [_misfit(error) for error in e.errors(include_url=False)]
    return [
        *_evidence_violations(envelope, judgement),
        *_layer_violations(envelope, judgement),
        *_plan_violations(envelope, judgement),
    ]


def _misfit(error: Any) -> Violation:
    path = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"])
    return Violation(path=path, keyword=error["type"], message=error["msg"])


def _evidence_violations(envelope: LLMEnvelope, judgement: JudgementV1) -> Iterator[Violation]:
    known = evidence_names(envelope)
    for layer, judged in judgement.layers.by_layer():
        for place, finding in enumerate(judged.findings):
            for cited, name in enumerate(finding.evidence_ids):
                if name not in known:
                    yield Violation(
                        path=f"$.layers.{layer}.findings[{place}].evidence_ids[{cited}]",
                        keyword="evidence",
                        message=f"there is no evidence {name!r}; allowed: {', '.join(known) or 'none'}",
                        actual=name,
                        allowed=list(known),
                    )


def _layer_violations(envelope: LLMEnvelope, judgement: JudgementV1) -> Iterator[Violation]:
    given = {layer.value: evidence for layer, evidence in evidence_by_layer(envelope).items()}
    for layer, judged in judgement.layers.by_layer():
        path = f"$.layers.{layer}"
        if judged.unavailable is (layer.value in given):
            state = f"given as {given[layer.value].name}" if layer.value in given else "not given"
            yield _must_be(
                f"{path}.unavailable",
                judged.unavailable,
                layer.value not in given,
                f"its evidence is {state}",
            )
        yield from (
            _silence_violations(path, judged) if judged.unavailable else _voice_violations(path, judged)
        )
        yield from _sign_violations(path, judged, judgement.direction)


def _silence_violations(path: str, judged: LayerJudgementV1) -> Iterator[Violation]:
    why = "the layer is unavailable"
    if judged.direction is not Direction.NEUTRAL:
        yield _must_be(f"{path}.direction", judged.direction, Direction.NEUTRAL, why)
    if judged.score != 0:
        yield _must_be(f"{path}.score", judged.score, 0, why)
    if judged.findings:
        yield _must_be(f"{path}.findings", len(judged.findings), [], why)


def _voice_violations(path: str, judged: LayerJudgementV1) -> Iterator[Violation]:
    if not judged.findings:
        yield Violation(
            path=f"{path}.findings",
            keyword="finding",
            message="there is no finding; allowed: 1 to 4, or unavailable where its evidence is missing",
        )


def _sign_violations(path: str, judged: LayerJudgementV1, overall: Direction) -> Iterator[Violation]:
    if overall is Direction.NEUTRAL:
        return
    if judged.direction is overall and judged.score < 0:
        yield _must_be(f"{path}.score", judged.score, 0, f"the layer is {overall} too; allowed: 0 or more")
    if judged.direction is overall.opposite and judged.score > 0:
        yield _must_be(
            f"{path}.score", judged.score, 0, f"the layer contradicts {overall}; allowed: 0 or less"
        )


def _plan_violations(envelope: LLMEnvelope, judgement: JudgementV1) -> Iterator[Violation]:
    proposal, direction = judgement.trade_plan, judgement.direction
    if proposal is None:
        if direction is not Direction.NEUTRAL:
            yield Violation(
                path="$.trade_plan",
                keyword="plan",
                message=f"there is no plan, but the direction is {direction}; allowed: a plan, or neutral and null",
            )
        return
    if direction is Direction.NEUTRAL:
        yield _must_be("$.trade_plan", "a plan", None, "the direction is neutral")
        return
    try:
        context = Context.model_validate(envelope.context)
    except ValidationError as e:
        yield Violation(
            path="$.trade_plan",
            keyword="context",
            message=f"no plan can be checked: the envelope's context breaks {e.error_count()} rules; allowed: null",
        )
        return
    prices = PlanPrices(proposal.entry, proposal.stop, proposal.target)
    yield from plan_violations(context, prices, rising=direction is Direction.BULLISH)


def _must_be(path: str, actual: Any, allowed: Any, why: str) -> Violation:
    return Violation(
        path=path,
        keyword="agreement",
        message=f"{actual} does not go with the rest: {why}",
        expected=allowed,
        actual=actual,
        allowed=allowed,
        suggestion=allowed,
    )

"""From an answer of the first release to the present form, without a look at anything else."""

from agentic_trading.desk.analysis import judgement as v2
from agentic_trading.desk.analysis.v1.judgement import JudgementV1, LayerJudgementV1, LayerV1


def upcast_assessment(old: JudgementV1) -> v2.Judgement:
    """Return what an accepted v1 answer says in the form of v2; equal answers give equal ones.

    A score for or against the overall direction becomes one that points by itself; where the overall direction was
    neutral, it points where its layer did. Findings of a layer are one text, and all that they cite is kept; it
    names the evidence of the old envelope. Layers that were unavailable are left out. What has no place in v2 is
    a layer's own direction and confidence: the v1 answer still has them. An available layer without findings was
    never accepted, and is left out as well. Raises pydantic's `ValidationError` for one that cites what no question
    can have named.
    """
    return v2.Judgement(
        layers={
            v2.Layer(layer.value): _layer(layer, judged, old.direction)
            for layer, judged in old.layers.by_layer()
            if not judged.unavailable and judged.findings
        },
        rationale=old.rationale,
        direction=old.direction,
        confidence=old.confidence,
        trade_plan=v2.TradeProposal(**old.trade_plan.model_dump()) if old.trade_plan else None,
    )


def _layer(layer: LayerV1, judged: LayerJudgementV1, overall: v2.Direction) -> v2.LayerJudgement:
    cited = tuple(dict.fromkeys(name for finding in judged.findings for name in finding.evidence_ids))
    return v2.LayerJudgement(
        finding="; ".join(finding.text for finding in judged.findings),
        evidence=cited[0],
        more_evidence=cited[1:],
        score=_score(layer, judged, overall),
    )


def _score(layer: LayerV1, judged: LayerJudgementV1, overall: v2.Direction) -> int:
    if v2.Layer(layer.value) not in v2.POINTING:
        return judged.score
    return judged.score * overall.sign if overall.sign else abs(judged.score) * judged.direction.sign

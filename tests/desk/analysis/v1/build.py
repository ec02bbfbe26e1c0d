"""Answers of the first release, for tests: only what matters is said."""

from typing import Any

from agentic_trading.desk.analysis.v1.judgement import JudgementV1, LayerV1


def layer(score: int = 0, direction: str = "neutral", *evidence: str, **changes: Any) -> dict[str, Any]:
    """Return one layer of an answer with one finding that cites `evidence`, by default E1."""
    finding = {"text": "as the numbers say", "evidence_ids": list(evidence or ("E1",))}
    return {
        "direction": direction,
        "score": score,
        "confidence": "medium",
        "findings": [finding],
        "unavailable": False,
        **changes,
    }


def layers(**changes: dict[str, Any]) -> dict[str, Any]:
    """Return all layers of an answer: neutral ones but for those given."""
    return {**{name.value: layer() for name in LayerV1}, **changes}


def plan(entry: str = "market", stop: str = "90", target: str = "120", **changes: Any) -> dict[str, Any]:
    """Return a proposed trade."""
    return {
        "entry": entry,
        "stop": stop,
        "target": target,
        "invalidation": "a close below the stop",
        **changes,
    }


def answer(**changes: Any) -> dict[str, Any]:
    """Return an answer to a question about a market at 100: bullish, with a total of 4."""
    return {
        "rationale": "trend and indicators agree",
        "direction": "bullish",
        "confidence": "medium",
        "layers": layers(trend=layer(2, "bullish"), indicators=layer(2, "bullish")),
        "trade_plan": plan(),
        **changes,
    }


def judgement(**changes: Any) -> JudgementV1:
    """Return the judgement in an answer."""
    return JudgementV1.model_validate(answer(**changes))

"""The benchmark of usages: what is recorded of each shape, through a platform, and that a breach is seen."""

from dataclasses import replace

from agentic_trading.llm import LLMInteraction
from benchmarks.usage import SHAPES, problem_of, run


def test_what_is_recorded_of_every_shape_is_its_bill_or_more_and_a_breach_is_seen() -> None:
    found = run()

    assert [shape for shape, _ in found] == list(SHAPES)
    assert [
        (shape.server, problem_of(shape, answer)) for shape, answer in found if problem_of(shape, answer)
    ] == []
    documented, answer = found[0]
    assert problem_of(replace(documented, billed=(19, 0, 11)), answer) == "LESS THAN BILLED"
    assert problem_of(replace(documented, billed=(18, 0, 10)), answer) == "NOT EXACT"
    assert problem_of(replace(documented, is_told=False), answer) == "NOT IN DOUBT"
    doubted: LLMInteraction = found[-1][1]
    assert problem_of(replace(documented, billed=(0, 0, 0)), doubted) == "REFUSED"
    assert doubted.failure is not None
    assert "charged at what was set aside" in doubted.failure.description

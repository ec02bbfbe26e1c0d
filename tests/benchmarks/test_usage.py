"""The benchmark of usages: what is recorded of each shape, through a platform, and that a breach is seen."""

from dataclasses import replace

from benchmarks.usage import FAILED, OVERBILLED, SHAPES, UNTOLD, problem_of, run


def test_recorded_usage_covers_bill_or_is_reported() -> None:
    found = run()

    assert [shape for shape, _, _ in found] == list(SHAPES)
    problems = {
        shape.server: problem_of(shape, answer, is_halted=is_halted) for shape, answer, is_halted in found
    }
    assert {server: problem for server, problem in problems.items() if problem} == {}
    documented, answer, _ = found[0]
    assert problem_of(documented, answer, is_halted=True) == "HALTED"
    assert problem_of(replace(documented, billed=(19, 0, 11)), answer) == "LESS THAN BILLED"
    assert problem_of(replace(documented, billed=(18, 0, 10)), answer) == "NOT EXACT"
    assert problem_of(replace(documented, is_told=False), answer) == "NOT CHARGED IN FULL"
    (unmetered,) = [answer for shape, answer, _ in found if shape is UNTOLD[-1]]
    assert problem_of(OVERBILLED[0], unmetered) == "LESS THAN BILLED"
    assert problem_of(OVERBILLED[0], found[-1][1]) == "NOT HALTED, OR NOT EXACT"
    (failed,) = [answer for shape, answer, _ in found if shape is FAILED[0]]
    assert problem_of(replace(documented, billed=(0, 0, 0)), failed) == "REFUSED"
    assert problem_of(FAILED[0], answer) == "NOT REFUSED, OR NOT IN DOUBT"

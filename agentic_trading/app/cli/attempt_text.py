"""The attempts at one call in a few words: what each was answered, how that was read, and what all took together."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from agentic_trading.app.cli.output import printable, usd
from agentic_trading.desk.decision_logging import verdict_of
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.attempt_trace import AttemptTrace, Fix, Violation
from agentic_trading.llm.result import LLMResult

MOST_CHANGES: Final = 5
MOST_ERRORS: Final = 3
ANSWER_CHARS: Final = 160
VALUE_CHARS: Final = 80


def attempts_told(attempts: Sequence[LLMInteraction]) -> list[str]:
    """Return a line for each attempt, lines for how its answer was read, and the sum where there are several."""
    lines = [line for attempt in attempts for line in _attempt(attempt)]
    if len(attempts) > 1:
        lines.append(_together([attempt.result for attempt in attempts]))
    return [printable(line) for line in lines]


def _attempt(attempt: LLMInteraction) -> Iterator[str]:
    result = attempt.result
    facts = [f"attempt {result.attempt_number} {verdict_of(attempt)}", *_sums([result])]
    if result.served_from == "recorded":
        facts.append("from the recording")
    if result.failure is not None:
        facts.append(result.failure.description)
    yield " · ".join(facts)
    if result.reading is not None:
        yield from (f"  {line}" for line in _read(result.reading, result))


def _read(reading: AttemptTrace, result: LLMResult) -> Iterator[str]:
    """Tell what is worth knowing of a reading: nothing of an answer that was accepted as it stood."""
    changes = [*reading.fixes, *reading.coercions, *reading.patches]
    if changes or reading.errors:
        answer = " ".join(result.raw_output[: 2 * ANSWER_CHARS].split())
        yield f"answered: {answer[:ANSWER_CHARS]}{'…' if len(answer) > ANSWER_CHARS else ''}"
    if changes:
        more = f" and {len(changes) - MOST_CHANGES} more" if len(changes) > MOST_CHANGES else ""
        yield f"read as {reading.decode}: {'; '.join(map(_change, changes[:MOST_CHANGES]))}{more}"
    yield from map(_error, reading.errors[:MOST_ERRORS])
    if len(reading.errors) > MOST_ERRORS:
        yield f"{len(reading.errors) - MOST_ERRORS} more rules are broken"


def _change(fix: Fix) -> str:
    before, after = _short(fix.before), _short(fix.after)
    if before and after:
        became = f"{before} became {after}"
    else:
        became = f"{before} left out" if before else f"{after} put in"
    return f"{fix.kind.replace('_', ' ')} at {fix.where}: {became}"


def _error(violation: Violation) -> str:
    facts = {"was": violation.actual, "allowed": violation.allowed, "nearest": violation.suggestion}
    told = [f"{name}: {_spelled(value)}" for name, value in facts.items() if value is not None]
    return "; ".join([f"{violation.path}: {violation.message}", *told])


def _spelled(value: Any) -> str:
    return _short(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def _short(text: str) -> str:
    return f"{text[:VALUE_CHARS]}…" if len(text) > VALUE_CHARS else text


def _together(results: Sequence[LLMResult]) -> str:
    return " · ".join([f"{len(results)} attempts together", *_sums(results)])


def _sums(results: Sequence[LLMResult]) -> tuple[str, str]:
    tokens_in = sum(result.usage.total_input_tokens for result in results)
    tokens_out = sum(result.output_tokens for result in results)
    return f"{tokens_in:,} tokens in, {tokens_out:,} out", f"{usd(sum(r.cost_nusd for r in results))} USD"

"""Rules beyond JSON Schema, found by the schema's `$id`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.attempt_trace import Violation
from agentic_trading.structured.semantic import SemanticCheck
from agentic_trading.worker.error_text import describe_error

Check = Callable[[LLMEnvelope, str], Sequence[Violation]]
Checks = Mapping[str, Check]
"""Rules beyond JSON Schema, by the schema's `$id`: a function of the envelope and the accepted text."""


def check_of(envelope: LLMEnvelope, checks: Checks) -> SemanticCheck | None:
    """Return the rules for the answer to `envelope`, or None where there are none."""
    check = checks.get(str(envelope.expected_output_schema.get("$id", "")))
    return partial(_checked, check, envelope) if check else None


def _checked(check: Check, envelope: LLMEnvelope, text: str) -> Sequence[Violation]:
    """Run a rule beyond the schema; one that breaks lets nothing through."""
    try:
        return check(envelope, text)
    except ValueError:
        raise  # what is wrong with the text: the reader tells it
    except Exception as e:  # noqa: BLE001 - a broken rule must not become an accepted answer
        return [Violation(path="$", keyword="check_failed", message=f"the check itself failed: {describe_error(e)}")]

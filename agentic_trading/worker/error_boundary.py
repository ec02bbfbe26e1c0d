"""Error boundaries: describe an error in one line, log it, and continue.

Also the errors of workers.
"""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from pydantic import ValidationError

from agentic_trading.governance.errors import ControlError, LedgerError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import LLMError, RecordError, StoreError
from agentic_trading.logger import get_logger

log = get_logger()


def describe_error(e: Exception) -> str:
    """Return the error and its place.

    A formatted traceback would read files on the loop. A `ValidationError` is reduced to places and kinds,
    because its text repeats the validated value, which may be an answer.
    """
    last = e.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" ({last.tb_frame.f_code.co_qualname}, line {last.tb_lineno})" if last else ""
    return f"{type(e).__name__}: {_message(e)}{where}"


def _message(e: Exception) -> str:
    if not isinstance(e, ValidationError):
        return str(e)
    errors = e.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['type']}" for error in errors)


@contextmanager
def log_and_continue(
    what: str, failing: MutableMapping[str, type[Exception]] | None = None, **facts: object
) -> Iterator[None]:
    """Log an error of the block as `what`, with `facts`, and suppress it.

    A `StoreError` is raised. With `failing`, for a block that runs again and again, an error is logged only
    when it begins or its type changes. Its end is logged as `recovered`.
    """
    known, step = {} if failing is None else failing, f"{what} {facts}"
    try:
        yield
    except StoreError:
        raise
    except Exception as e:  # noqa: BLE001 - the boundary: other work continues
        if known.get(step) is type(e):
            return
        known[step] = type(e)
        if isinstance(e, LedgerError | ControlError | RecordError):
            log.warning(what, reason=str(e), **facts)
        else:
            log.error(what, error=describe_error(e), **facts)  # noqa: TRY400 - in one line
    else:
        if known.pop(step, None) is not None:
            log.warning("recovered", after=what, **facts)


class AttemptTakenError(LLMError):
    """Another run has sent attempt `attempt` of `envelope_id`, and it is `state`.

    This run must not settle or store it.
    """

    def __init__(self, envelope_id: str, attempt: int, state: str) -> None:
        self.envelope_id = envelope_id
        self.attempt = attempt
        self.state = state
        super().__init__(
            f"Attempt {attempt} of {envelope_id} is already {state}. Use an envelope with another id."
        )


class UndeliverableError(LLMError):
    """A delivery for `envelope_id` of `trace_id` cannot be served because of `reason`.

    A retry does not help.
    """

    def __init__(self, reason: str, detail: str, *, envelope_id: str = "", trace_id: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.envelope_id = envelope_id
        self.trace_id = trace_id
        super().__init__(f"{reason}: {detail}")


class UnstreamedError(LLMError):
    """Line `seq` of the log is not on the bus, because of `problem`, and the wait is over.

    Its delivery comes again.
    """

    def __init__(self, seq: int, problem: str) -> None:
        self.seq = seq
        self.problem = problem
        because = f" ({problem})" if problem else ""
        super().__init__(
            f"Line {seq} is in the log but not on the bus yet{because}. The next start in this folder sends it."
        )


def id_conflict(envelope: LLMEnvelope) -> UndeliverableError:
    """Return the error for an envelope whose id another envelope of the tenant has."""
    return UndeliverableError(
        "id_conflict",
        "another envelope has the same id. Use a different id for each envelope.",
        envelope_id=envelope.envelope_id,
        trace_id=envelope.trace_id,
    )

"""Where an error ends: described in one line, logged, and the rest goes on; the errors of a worker's own."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from pydantic import ValidationError

from agentic_trading.governance.errors import ControlError, LedgerError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import LLMError, RecordError, StoreError
from agentic_trading.logger import get_logger

log = get_logger()


def describe_error(e: Exception) -> str:
    """Return what was raised and where; a formatted traceback would read files on the loop.

    Of a `ValidationError` only places and kinds: its own words repeat what was validated, which may be an answer.
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
    """Log an error of the block as `what`, with `facts`; a log that gave up goes on: `StoreError`.

    With `failing`, of a block that is entered again and again, an error is logged when it begins or is of another kind,
    and its end as `recovered`.
    """
    known, step = {} if failing is None else failing, f"{what} {facts}"
    try:
        yield
    except StoreError:
        raise
    except Exception as e:  # noqa: BLE001 - the boundary: other work goes on
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
    """Attempt `attempt` at `envelope_id` was sent before, and is `state`: it is not this run's to settle or to keep."""

    def __init__(self, envelope_id: str, attempt: int, state: str) -> None:
        self.envelope_id = envelope_id
        self.attempt = attempt
        self.state = state
        super().__init__(
            f"attempt {attempt} at {envelope_id} is {state} already; allowed is an envelope with another id"
        )


class UndeliverableError(LLMError):
    """A delivery for `envelope_id` of `trace_id` cannot be served, for `reason`: another try does not help."""

    def __init__(self, reason: str, detail: str, *, envelope_id: str = "", trace_id: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.envelope_id = envelope_id
        self.trace_id = trace_id
        super().__init__(f"{reason}: {detail}")


class UnstreamedError(LLMError):
    """Line `seq` of the log is not on the bus yet, for `problem`, and is waited for no longer: its delivery comes again."""

    def __init__(self, seq: int, problem: str) -> None:
        self.seq = seq
        self.problem = problem
        because = f" ({problem})" if problem else ""
        super().__init__(
            f"line {seq} is on record and not on the bus yet{because}; the next start in this folder sends it"
        )


def id_conflict(envelope: LLMEnvelope) -> UndeliverableError:
    """Return that another envelope of the tenant has the same id."""
    return UndeliverableError(
        "id_conflict",
        "another envelope has the same id; allowed is an id for each",
        envelope_id=envelope.envelope_id,
        trace_id=envelope.trace_id,
    )

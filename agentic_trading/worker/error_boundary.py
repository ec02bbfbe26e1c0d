"""A boundary around work that comes again: what goes wrong in it is logged, and the rest goes on."""

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from agentic_trading.governance.errors import ControlError, LedgerError
from agentic_trading.llm.errors import RecordError, StoreError
from agentic_trading.worker.error_text import describe_error

log = structlog.get_logger()


@contextmanager
def log_and_continue(what: str, **facts: object) -> Iterator[None]:
    """Log an error of the block as `what`, with `facts`; only a log that gave up is not passed over: `StoreError`."""
    try:
        yield
    except StoreError:
        raise
    except (LedgerError, ControlError, RecordError) as e:
        log.warning(what, reason=str(e), **facts)
    except Exception as e:  # noqa: BLE001 - the boundary: orders are followed whatever else is wrong
        log.error(what, error=describe_error(e), **facts)  # noqa: TRY400 - told in one line

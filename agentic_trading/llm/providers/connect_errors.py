"""What fails before there is a connection: nothing was sent."""

from collections.abc import Iterator
from contextlib import contextmanager

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind


@contextmanager
def nothing_sent() -> Iterator[None]:
    """Raise whatever goes wrong while an SDK is loaded and its client made as `invalid_request`, not sent.

    Only what an import or the system says is told: other words may repeat a proxy's password.
    """
    try:
        yield
    except Exception as e:  # noqa: BLE001 - whatever it was, no request had left, and none must be charged
        said = f": {e}" if isinstance(e, ImportError | OSError) else ""
        message = (
            f"the client cannot be made ({type(e).__name__}{said}); "
            "check the installed extra, and the proxies and certificates that the environment names"
        )
        raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from None

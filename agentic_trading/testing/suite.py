"""The base of the contract suites: it runs a check on an event loop of its own, and reports a broken promise."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

E = TypeVar("E", bound=Exception)


class BrokenContractError(AssertionError):
    """An adapter breaks a promise of its port. The message has the promise and the value that was found."""

    def __init__(self, promise: str, found: object) -> None:
        self.promise = promise
        self.found = found
        super().__init__(f"{promise}. Found: {found}")


def require(promise: str, found: object, *, kept: bool) -> None:
    """Raise `BrokenContractError` unless a promise is kept."""
    if not kept:
        raise BrokenContractError(promise, found)


def require_equal(promise: str, found: object, expected: object) -> None:
    """Raise `BrokenContractError` unless two values are equal."""
    require(promise, f"{found!r} instead of {expected!r}", kept=found == expected)


async def raised_by(attempt: Awaitable[object], kind: type[E], promise: str) -> E:
    """Return the error of this kind that an attempt raises.

    Raises:
        BrokenContractError: If it raises another error, or returns.

    """
    try:
        returned = await attempt
    except kind as e:
        return e
    except Exception as e:  # because an adapter may raise anything
        raise BrokenContractError(promise, f"{type(e).__name__}: {e}") from e
    raise BrokenContractError(promise, f"the result {returned!r}")


class Suite:
    """Tests that a subclass runs on its own adapter. Test runners collect the methods named `test_*`.

    Attributes:
        timeout_s: The maximum duration of one check, in seconds.

    """

    timeout_s: float = 20

    def run_check(self, check: Coroutine[Any, Any, None]) -> None:
        """Run a check to its end.

        Raises:
            BrokenContractError: If a promise is broken, or the check takes longer than `timeout_s`.

        """
        asyncio.run(self._within_timeout(check))

    async def _within_timeout(self, check: Coroutine[Any, Any, None]) -> None:
        limit = asyncio.timeout(self.timeout_s)
        try:
            async with limit:
                await check
        except TimeoutError as e:
            if not limit.expired():
                raise
            raise BrokenContractError(f"a check ends within {self.timeout_s:g} s", "it was cancelled") from e

"""The signing keys of principals in a folder, reloaded when the folder changes."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from agentic_trading.bus.errors import SigningKeyError
from agentic_trading.bus.signing import Signer, Verifier, keys_by_principal, keys_stamp, read_keys
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.files import ANSWERED_WITHIN_S, UnreadableFileError, read_within
from agentic_trading.governance.policy import Policy
from agentic_trading.logger import get_logger

log = get_logger()

T = TypeVar("T")

READ_AGAIN_S: Final = 30.0
"""Seconds between checks of the folder. A removed key is accepted until the next check."""

FOLDER_WITHIN_S: Final = 1.5 * ANSWERED_WITHIN_S
"""Time limit for reading the folder. One file in it has `ANSWERED_WITHIN_S`."""

KeysByPrincipal = Mapping[str, tuple[bytes, ...]]


class PrincipalKeys:
    """The keys of principals. The verifier and the signers change together.

    Creating it blocks for at most `within_s` seconds per step, and raises the errors of `read`.

    Args:
        folder: The folder of the keys.
        read: Reads the keys in `folder`.
        within_s: Time limit of each step, in seconds.

    """

    def __init__(
        self, folder: Path, read: Callable[[], KeysByPrincipal], *, within_s: float = FOLDER_WITHIN_S
    ) -> None:
        self._folder = folder
        self._within_s = within_s
        self._read = read
        self._clock: Clock = SystemClock()
        self._stamp = self._in_time(partial(keys_stamp, folder))
        self._keys = self._in_time(read)
        self._read_at = self._clock.monotonic()
        self._signers: dict[str, Signer] = {}
        self.verifier = Verifier(self._keys)

    @property
    def principals(self) -> Iterable[str]:
        """The principals with a key."""
        return self._keys

    @property
    def secrets(self) -> Iterable[bytes]:
        """All keys."""
        return [key for keys in self._keys.values() for key in keys]

    @property
    def unread_s(self) -> float:
        """Seconds since the folder was last read or found unchanged."""
        return self._clock.monotonic() - self._read_at

    def signer(self, principal: str) -> Signer:
        """Return the signer of a principal. It follows key changes. Raises `KeyError` without a key."""
        if principal not in self._signers:
            self._signers[principal] = Signer(principal, *self._keys[principal])
        return self._signers[principal]

    @asynccontextmanager
    async def followed(self, clock: Clock, renewed: Callable[[], None]) -> AsyncGenerator[None]:
        """Reload changed keys while the block runs, and call `renewed` each time."""
        self._clock = clock
        self._read_at = clock.monotonic()
        # A TaskGroup would raise an error of the block, such as a port in use, as an ExceptionGroup.
        task = asyncio.Task(self._follow(clock, renewed), name="signing-keys")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self, clock: Clock, renewed: Callable[[], None]) -> None:
        while True:
            await clock.sleep(READ_AGAIN_S)
            try:
                found = await asyncio.to_thread(self._changed)
            except SigningKeyError as e:
                # The last keys stay valid, because a broken file would otherwise stop all workers.
                log.warning("signing_keys_not_renewed", reason=str(e), unread_s=round(self.unread_s))
                continue
            self._read_at = clock.monotonic()
            if found is not None:
                self._renew(found)
                renewed()

    def _changed(self) -> KeysByPrincipal | None:
        """Return the keys if the folder has changed since the last read. Blocks."""
        stamp = self._in_time(partial(keys_stamp, self._folder))
        if stamp == self._stamp:
            return None
        keys = self._in_time(self._read)
        self._stamp = stamp
        return keys

    def _in_time(self, read: Callable[[], T]) -> T:
        """Return the result of `read`. Raises `SigningKeyError` if the disk does not answer. Blocks."""
        try:
            return read_within(self._folder, read, within_s=self._within_s)
        except UnreadableFileError as e:
            found = f"cannot be read ({e.strerror})"
            raise SigningKeyError(str(self._folder), found, "a folder of keys on a disk that answers") from e

    def _renew(self, keys: KeysByPrincipal) -> None:
        self.verifier.renew(keys)
        for principal, signer in self._signers.items():
            if principal in keys:
                signer.renew(keys[principal])
        self._keys = keys
        log.info("signing_keys_renewed", principals=sorted(keys))


def signing_keys_of(folder: Path, policy: Policy | None) -> KeysByPrincipal:
    """Return the keys of each principal in a folder. With a policy, only those that it names.

    Blocks, because it reads files.

    Raises:
        SigningKeyError: If a key is invalid or missing.

    """
    keys = read_keys(folder)
    return keys_by_principal(keys, policy.keys if policy is not None else {name: (name,) for name in keys})


def signing_keys_in(folder: Path | None, policy: Policy | None) -> PrincipalKeys | None:
    """Return the keys of a folder, ready to be followed, or None. Raises as `signing_keys_of` does."""
    return None if folder is None else PrincipalKeys(folder, partial(signing_keys_of, folder, policy))

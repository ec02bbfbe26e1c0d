"""Keys of providers by tenant, and one client for each key.

Keys never appear in reprs, errors or logs.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from typing_extensions import override

from agentic_trading.files import MOST_SECRET_BYTES, read_utf8
from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.redaction import Redaction

_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}")
_KEY = re.compile(r"[!-~]+")  # what a header can carry


class Keys(Protocol):
    """A source of the keys of tenants."""

    async def key_of(self, tenant_id: str) -> str:
        """Return the current key of a tenant.

        After a rotation, the next request gets the new key.

        Raises:
            ProviderError: Of kind `auth_error`, not sent, if the tenant has no key.

        """
        ...


class OneKey:
    """The same key for every tenant.

    A key that is empty or invalid in a header is refused when it is used.
    """

    def __init__(self, key: str) -> None:
        self._key = key.strip()

    async def key_of(self, tenant_id: str) -> str:  # noqa: ARG002 - the same for all
        """Return the key."""
        return _check_key(self._key, "the key")

    @override
    def __repr__(self) -> str:
        return "OneKey(…)"


class SecretsFolder:
    """Keys in files of a folder, for each tenant or for all.

    The file is `folder/<tenant>/<name>`, or else `folder/<name>`. It is read for each request, in a thread,
    so that you can rotate a key without a restart: rename a new file into place, as secret mounts do. An
    empty or unreadable file is an error: no other key is used instead.

    Args:
        folder: The folder of the files.
        name: The name of the file.
        default: The keys of tenants without a file.
        own: Tenants that only use a key of their own folder.

    """

    def __init__(
        self, folder: Path, name: str, default: Keys | None = None, *, own: frozenset[str] = frozenset()
    ) -> None:
        self._folder = folder
        self._name = name
        self._default = default
        self._own = own

    async def key_of(self, tenant_id: str) -> str:
        """Return the tenant's key.

        A tenant whose id is not a valid folder name has no key.
        """
        if not _TENANT.fullmatch(tenant_id):
            raise _no_key(
                f"tenant {tenant_id[:128]!r} has no key",
                "Allowed: an id of 1 to 128 letters, digits and ._@-, without a dot or dash at its start",
            )
        key = await asyncio.to_thread(self._read, tenant_id)
        if key is not None:
            return key
        if self._default is not None and tenant_id not in self._own:
            return await self._default.key_of(tenant_id)
        places = " and ".join(map(str, self._places(tenant_id)))
        raise _no_key(f"tenant {tenant_id!r} has no key", f"Write it to one of these files: {places}")

    def _read(self, tenant_id: str) -> str | None:
        for path in self._places(tenant_id):
            try:
                text = read_utf8(path, most_bytes=MOST_SECRET_BYTES)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                # Not skipped, because the tenant would otherwise be served with another key.
                raise _no_key(f"{path} cannot be read", f"{e.strerror}. Allowed: a text file") from None
            return _check_key(text.strip(), f"{path}")
        return None

    def _places(self, tenant_id: str) -> list[Path]:
        own = self._folder / tenant_id / self._name
        return [own] if tenant_id in self._own else [own, self._folder / self._name]

    @override
    def __repr__(self) -> str:
        return f"SecretsFolder({str(self._folder)!r}, {self._name!r}, {self._default!r})"


class KnownKeys:
    """The keys of another source, each added to `redaction` before it is used."""

    def __init__(self, keys: Keys, redaction: Redaction) -> None:
        self._keys = keys
        self._redaction = redaction

    async def key_of(self, tenant_id: str) -> str:
        """Return the key. Raises the errors of its source."""
        key = await self._keys.key_of(tenant_id)
        self._redaction.add(key)
        return key

    @override
    def __repr__(self) -> str:
        return repr(self._keys)


def _check_key(key: str, where: str) -> str:
    if not _KEY.fullmatch(key):
        raise _no_key(f"{where} is empty or not a key", "Allowed: one line of visible ASCII characters")
    return key


def _no_key(problem: str, remedy: str) -> ProviderError:
    return ProviderError(FailureKind.AUTH_ERROR, f"{problem}. {remedy}", sent=False)


P = TypeVar("P", bound=Provider)


@dataclass(slots=True)
class _SharedClient(Generic[P]):
    provider: P
    calls: int = 0
    is_retired: bool = False


class ClientPerKey(Generic[P]):
    """Lend a provider that is connected with the key of a tenant.

    Tenants with the same key share one provider. It is closed when no tenant has its key any more and its
    last call has ended. `connect` is called once for each key, in a thread, because it may read files.
    """

    def __init__(self, keys: Keys, connect: Callable[[str], P]) -> None:
        self._keys = keys
        self._connect = connect
        self._clients: dict[str, _SharedClient[P]] = {}
        self._key_of: dict[str, str] = {}
        self._connecting = asyncio.Lock()

    @asynccontextmanager
    async def lend(self, tenant_id: str) -> AsyncIterator[P]:
        """Lend the provider of a tenant for one call. Raises the errors of `Keys.key_of`."""
        key = await self._keys.key_of(tenant_id)
        client = self._clients.get(key) or await self._client_of(key)
        client.calls += 1
        try:
            await self._assign(tenant_id, key)
            yield client.provider
        finally:
            client.calls -= 1
            await _close_if_over(client)

    async def aclose(self) -> None:
        """Close every provider, even during a call. You may call it twice."""
        clients, self._clients = list(self._clients.values()), {}
        self._key_of.clear()
        for client in clients:
            await client.provider.aclose()

    async def _client_of(self, key: str) -> _SharedClient[P]:
        # One at a time, so that calls which start together do not connect twice with one key.
        async with self._connecting:
            if key not in self._clients:
                self._clients[key] = _SharedClient(await asyncio.to_thread(self._connect, key))
            return self._clients[key]

    async def _assign(self, tenant_id: str, key: str) -> None:
        before = self._key_of.get(tenant_id)
        if before == key:
            return
        self._key_of[tenant_id] = key
        if before is not None and before not in self._key_of.values():
            client = self._clients.pop(before)
            client.is_retired = True
            await _close_if_over(client)


async def _close_if_over(client: _SharedClient[P]) -> None:
    if client.is_retired and not client.calls:
        await client.provider.aclose()

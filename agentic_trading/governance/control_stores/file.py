"""Controls in a folder for the processes of one machine, and in memory for one process."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from agentic_trading.clock import Clock, SystemClock
from agentic_trading.files import locked, read_file, replace_file
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError, ControlsUnreadableError

_DOCUMENT = TypeAdapter(TenantControls)


def stored(controls: TenantControls) -> bytes:
    """Serialize a document as JSON. Amounts are whole nano-dollars, tokens and calls."""
    return _DOCUMENT.dump_json(controls, indent=2, exclude_none=True) + b"\n"


def read_stored(raw: bytes, where: str) -> TenantControls:
    """Parse the output of `stored`.

    Raises `ControlsUnreadableError` with `where` for other content.
    """
    try:
        controls = TenantControls.model_validate_json(raw)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "document"
        raise ControlsUnreadableError(where, f"{place}: {first['msg']}") from e
    if controls.version == 0:
        raise ControlsUnreadableError(where, "version: is missing or 0. Allowed: 1 and above")
    return controls


_LOCK = "controls.lock"


class FileControlStore:
    """Controls in `folder`, one file per tenant.

    The folder is created with the first file. A file is replaced atomically, under a lock of all writers, and
    is on disk when `replace` returns. Reading takes no lock. All processes must run on one machine, because
    locks on network drives are not reliable.
    """

    def __init__(self, folder: Path, *, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock: Clock = clock or SystemClock()

    async def read(self, tenant: str) -> TenantControls:
        """Return the content of the tenant's file."""
        return await asyncio.to_thread(self._read, self._path(tenant))

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        """Replace the tenant's file, unless another writer has done so since."""
        return await asyncio.to_thread(self._replace, self._path(tenant), controls)

    async def now(self) -> datetime:
        """Return the time of this machine."""
        return self._clock.now()

    async def aclose(self) -> None:
        """Do nothing, because no file is kept open."""

    def _path(self, tenant: str) -> Path:
        return self._folder / f"controls-{quote(tenant, safe='', errors='surrogatepass')}.json"

    def _read(self, path: Path) -> TenantControls:
        with _reaching(path):
            try:
                raw = read_file(path)
            except FileNotFoundError:
                return TenantControls()
        return read_stored(raw, str(path))

    def _replace(self, path: Path, controls: TenantControls) -> bool:
        with _reaching(path), locked(self._folder / _LOCK):
            if self._read(path).version != controls.version - 1:
                return False
            replace_file(path, stored(controls))
            return True


@contextmanager
def _reaching(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise ControlsUnavailableError(str(path), e.strerror or type(e).__name__) from e


class MemoryControlStore:
    """Controls as long as the process lives."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._documents: dict[str, TenantControls] = {}
        self._clock: Clock = clock or SystemClock()

    async def read(self, tenant: str) -> TenantControls:
        """Return the tenant's document."""
        return self._documents.get(tenant, TenantControls())

    async def replace(self, tenant: str, controls: TenantControls) -> bool:
        """Replace the document of the version before."""
        before = self._documents.get(tenant, TenantControls())
        if before.version != controls.version - 1:
            return False
        self._documents[tenant] = controls
        return True

    async def now(self) -> datetime:
        """Return the time of this process."""
        return self._clock.now()

    async def aclose(self) -> None:
        """Do nothing, because no connection was opened."""

"""Statuses in a session's folder, one small file per worker and tenant; and in memory, for one process."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pydantic import ValidationError

from agentic_trading.canonical import sha256_hex
from agentic_trading.files import read_file
from agentic_trading.governance.status_feed import BudgetStatus

_LONGEST = 100
"""Two names and what stands around them fit into the 255 bytes that a file's name may have."""


class FileStatusFeed:
    """Keeps the last statuses in `folder`, as long as that is there; what cannot be written is dropped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def publish(self, status: BudgetStatus) -> None:
        """Publish `status`; without a flush to disk, as the next one comes soon."""
        await asyncio.to_thread(self._write, status)

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return the statuses of a tenant, by worker; a file that is no status is left out."""
        return await asyncio.to_thread(self._read, f"{_escaped(tenant)}@*")

    async def tenants(self) -> list[str]:
        """Return the tenants that have a status in the folder."""
        return sorted({status.tenant for status in await asyncio.to_thread(self._read, "*")})

    async def aclose(self) -> None:
        """Nothing was opened."""

    def _write(self, status: BudgetStatus) -> None:
        path = self._folder / f"budget-{_escaped(status.tenant)}@{_escaped(status.worker)}.json"
        new = path.with_name(f"{path.name}.new")
        try:
            new.write_text(status.model_dump_json(indent=1), encoding="utf-8")
            os.replace(new, path)  # noqa: PTH105 - atomic, and named for it
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)

    def _read(self, names: str) -> list[BudgetStatus]:
        found = []
        for path in self._folder.glob(f"budget-{names}.json"):
            try:
                found.append(BudgetStatus.model_validate_json(read_file(path)))
            except (OSError, ValidationError):
                continue
        return sorted(found, key=lambda status: status.worker)


def _escaped(name: str) -> str:
    """Return a name as a part of a file's name; a long one is cut, and ends in its hash."""
    escaped = quote(name, safe="", errors="surrogatepass")
    if len(escaped) <= _LONGEST:
        return escaped
    digest = sha256_hex(name.encode("utf-8", "surrogatepass"))[:32]
    return f"{escaped[: _LONGEST - len(digest) - 1]}+{digest}"  # escaped names have no plus


class MemoryStatusFeed:
    """Keeps the last statuses for as long as the process lives."""

    def __init__(self) -> None:
        self._statuses: dict[tuple[str, str], BudgetStatus] = {}

    async def publish(self, status: BudgetStatus) -> None:
        """Publish `status`."""
        self._statuses[status.tenant, status.worker] = status

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return the statuses of a tenant, by worker."""
        return [self._statuses[key] for key in sorted(self._statuses) if key[0] == tenant]

    async def tenants(self) -> list[str]:
        """Return the tenants that have a status."""
        return sorted({tenant for tenant, _ in self._statuses})

    async def aclose(self) -> None:
        """Nothing was opened."""

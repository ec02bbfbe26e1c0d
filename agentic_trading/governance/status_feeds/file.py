"""Statuses in a session's folder: one small file a worker and tenant, replaced as a whole."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pydantic import ValidationError

from agentic_trading.canonical import sha256_hex
from agentic_trading.governance.status_feed import BudgetStatus

_LONGEST = 100
"""Two names and what stands around them fit into the 255 bytes that a file's name may have."""


class FileStatusFeed:
    """Keeps what was told last in `folder`, as long as that is there; what cannot be written is not told."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def publish(self, status: BudgetStatus) -> None:
        """Tell `status`; without a flush to disk, as the next one comes soon."""
        await asyncio.to_thread(self._write, status)

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return what was told of a tenant, by worker; a file that is no status is not one."""
        return await asyncio.to_thread(self._read, tenant)

    async def aclose(self) -> None:
        """There is nothing to give back."""

    def _write(self, status: BudgetStatus) -> None:
        path = self._folder / f"budget-{_escaped(status.tenant)}@{_escaped(status.worker)}.json"
        new = path.with_name(f"{path.name}.new")
        try:
            new.write_text(status.model_dump_json(indent=1), encoding="utf-8")
            os.replace(new, path)  # noqa: PTH105 - atomic, and named for it
        except OSError:
            with suppress(OSError):
                new.unlink(missing_ok=True)

    def _read(self, tenant: str) -> list[BudgetStatus]:
        found = []
        for path in self._folder.glob(f"budget-{_escaped(tenant)}@*.json"):
            try:
                found.append(BudgetStatus.model_validate_json(path.read_bytes()))
            except (OSError, ValidationError):
                continue
        return sorted(found, key=lambda status: status.worker)


def _escaped(name: str) -> str:
    """Return a name as a part of a file's name; a long one is cut, and told from others by its hash."""
    escaped = quote(name, safe="", errors="surrogatepass")
    if len(escaped) <= _LONGEST:
        return escaped
    digest = sha256_hex(name.encode("utf-8", "surrogatepass"))[:32]
    return f"{escaped[: _LONGEST - len(digest) - 1]}+{digest}"  # escaped names have no plus


class MemoryStatusFeed:
    """Keeps what was told last, for as long as the process lives."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], BudgetStatus] = {}

    async def publish(self, status: BudgetStatus) -> None:
        """Tell `status`."""
        self._told[status.tenant, status.worker] = status

    async def read(self, tenant: str) -> list[BudgetStatus]:
        """Return what was told of a tenant, by worker."""
        return [self._told[key] for key in sorted(self._told) if key[0] == tenant]

    async def aclose(self) -> None:
        """There is nothing to give back."""

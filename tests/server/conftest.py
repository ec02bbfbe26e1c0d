"""A server of its own for each test, between the official SDKs and a stub of both vendors."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO
from zoneinfo import ZoneInfo

import aiohttp
import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.clock import SystemClock
from agentic_trading.ids import random_id
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.config import (
    ModelConfig,
    PlatformConfig,
    PriceConfig,
    ProviderConfig,
    TenantConfig,
)
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.server.api_keys import ApiKey, ApiKeyFile, ApiKeys, new_api_key
from agentic_trading.server.server import ApiServer, api_server
from agentic_trading.server.serving import ServedPlatform
from tests.cli.conftest import Command, command
from tests.forked import Running, command_line, running
from tests.logging_kept import logging_kept
from tests.stubs.running import page_of, serving
from tests.stubs.vendor_api import MODELS

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
__all__ = ["command"]  # a fixture of the tests of commands
ALIASES = {"gpt": "openai/stub-large", "claude": "anthropic/claude-stub"}


@pytest.fixture(scope="session")
def vendor() -> Iterator[str]:
    """Return the address of a stub of both vendors."""
    with serving("tests.stubs.vendor_api") as address:
        yield address


def config(vendor: str, **changes: Any) -> PlatformConfig:
    """Return a configuration whose providers are the stub."""

    def row(model: str) -> ModelConfig:
        price = PriceConfig(
            input=2000, output=10_000, service_tier={"default": (1, 1), "standard_only": (1, 1)}
        )
        return ModelConfig(
            model=model, context_tokens=200_000, max_output_tokens=64_000, overhead_tokens=64, price=price,
            source="the stub", checked_on=CREATED.date(),
        )  # fmt: skip

    fields: dict[str, Any] = {
        "providers": {
            "openai": ProviderConfig(base_url=f"{vendor}/v1", models=(row(MODELS[0]),)),
            "anthropic": ProviderConfig(base_url=vendor, models=(row(MODELS[1]),)),
        },
        "tenants": {"acme": TenantConfig(budget_usd=Decimal(5))},
        "concurrency": 16,
    }
    return PlatformConfig(**{**fields, **changes})


@dataclass
class Served:
    """A running server, a secret of it, and the log behind it."""

    url: str
    secret: str
    key: ApiKey
    store: InteractionStore
    server: ApiServer
    platform: Platform
    vendor: str

    async def billed(self) -> Mapping[str, Any]:
        """Return the stub's invoice."""
        return await asyncio.to_thread(page_of, self.vendor, "/invoice")

    async def asked(self) -> list[dict[str, Any]]:
        """Return the requests that the stub has seen."""
        return list((await asyncio.to_thread(page_of, self.vendor, "/requests"))["requests"])

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a plain request."""
        named = {"authorization": f"Bearer {self.secret if secret is None else secret}"} | dict(headers or {})
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.url}{path}", headers=named, **more) as answer,
        ):
            yield answer


Serving = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(vendor: str, tmp_path: Path) -> Serving:
    """Return a function that opens a server; `rights` are fields of its key."""

    @asynccontextmanager
    async def opened(
        *, rights: Mapping[str, Any] | None = None, ports: Ports | None = None, timing: Mapping[str, Any] | None = None,
        most_bytes: int = 1 << 20, name: str = "desk", drain_s: float = 5, **changes: Any,
    ) -> AsyncGenerator[Served]:  # fmt: skip
        made, secret = new_api_key(
            name, CREATED, {"tenant": "acme", "agent": "trader-1", "models": ALIASES, **(rights or {})}
        )
        folder = tmp_path / "secrets"
        if not folder.exists():
            folder.mkdir()
            for name in ("openai", "anthropic"):
                (folder / f"{name}_api_key").write_text("sk-upstream")
        keys = await asyncio.to_thread(_written, tmp_path / "api-keys.toml", made)
        store = MemoryInteractionStore()
        given = ports or Ports(store=store)
        async with AsyncExitStack() as stack:
            platform = await stack.enter_async_context(
                Platform(config(vendor, secrets_folder=folder, **changes), given)
            )
            client = await stack.enter_async_context(platform.client("http"))
            served = ServedPlatform(platform, keys, ZoneInfo("UTC"), ["openai/stub-large"], {"": client})
            server = ApiServer(keys, served, SystemClock(), most_bytes, **(timing or {}))
            url = await stack.enter_async_context(api_server(server, "127.0.0.1", 0, drain_s=drain_s))
            yield Served(url, secret, made, given.store or store, server, platform, vendor)

    return opened


def _written(file: Path, *keys: ApiKey) -> ApiKeys:
    file.unlink(missing_ok=True)
    for key in keys:
        ApiKeyFile(file).add(key)
    return ApiKeys(file, SystemClock())


CONFIG = """
[tenants.acme]
budget_usd = "1"

[providers.openai]
base_url = "{vendor}/v1"

[[providers.openai.models]]
model = "stub-large"
context_tokens = 200000
max_output_tokens = 64000
source = "the stub"
checked_on = 2026-01-01
price = {{ input = 2000, output = 10000, service_tier = {{ default = [1, 1] }} }}

[providers.anthropic]
base_url = "{vendor}"

[[providers.anthropic.models]]
model = "claude-stub"
context_tokens = 200000
max_output_tokens = 64000
source = "the stub"
checked_on = 2026-01-01
price = {{ input = 2000, output = 10000, service_tier = {{ default = [1, 1], standard_only = [1, 1] }} }}
"""


@pytest.fixture
def place(tmp_path: Path, vendor: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with a configuration, secrets, and a key whose secret is in `secret.txt`."""
    monkeypatch.chdir(tmp_path)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in ("openai", "anthropic"):
        (secrets / f"{name}_api_key").write_text("sk-upstream")
    top = f'secrets_folder = "secrets"\n{CONFIG.format(vendor=vendor)}'
    (tmp_path / "agentic-trading.toml").write_text(top)
    names = ["--model", "gpt=openai/stub-large", "--model", "claude=anthropic/claude-stub"]
    with logging_kept():
        made = command("api-keys", "create", "desk", "--tenant", "acme", "--agent", "trader-1", *names)
        assert made.code == ExitCode.DONE, made.err
        (tmp_path / "secret.txt").write_text(made.out.split()[-1])
        yield tmp_path


@dataclass(frozen=True, slots=True)
class ServeProcess(Running):
    """A process of `serve`."""

    errors: TextIO

    def ends(self) -> str:
        """Send SIGTERM, wait until it has ended, and return what it has written since its URL."""
        self.send_signal(signal.SIGTERM)
        rest = self.errors.read()
        self.wait(60)
        return rest


@contextmanager
def started(place: Path, *words: str) -> Iterator[tuple[str, ServeProcess]]:
    """Run `serve` in a process of its own, and yield its URL."""
    said = place / f"serve-{random_id()}"
    os.mkfifo(said)
    words = ("serve", "--http", "127.0.0.1:0", *words)
    with running(command_line, *words, streams={2: said}, cwd=place) as process, said.open() as errors:
        said.unlink()
        lines: list[str] = []
        for line in errors:
            lines.append(line)
            if line.startswith("serving "):
                break
        assert lines[-1:] == [line for line in lines if line.startswith("serving ")], lines
        yield lines[-1].split()[1], ServeProcess(process.process, errors)

"""A gateway inside an application, in one call."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

from agentic_trading.client.sync_gateway import gateway_context
from agentic_trading.llm.envelope import DEFAULT_TENANT
from agentic_trading.llm.provider import Provider, Providers, ToolDefinition
from agentic_trading.llm.store import InteractionStore
from agentic_trading.platform.config import PlatformConfig, TenantConfig
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.port_adapters import PortStack
from agentic_trading.platform.recorded_gateway import replayed_gateway
from agentic_trading.worker.call_context import Checks


@gateway_context
@asynccontextmanager
async def local_gateway(
    provider: Provider | Mapping[str, Provider],
    *,
    budget_usd: Decimal,
    folder: Path | str | None = None,
    store: InteractionStore | None = None,
    workers: int = 4,
    tenant: str = DEFAULT_TENANT,
    checks: Checks = MappingProxyType({}),
    models_file: Path | None = None,
    prices_file: Path | None = None,
    policy: Path | None = None,
    sign_as: str = "",
    tools: Iterable[ToolDefinition] = (),
) -> AsyncGenerator[Platform]:
    """Open a gateway in this process: workers, ledger and log around your provider.

    Use `async with local_gateway(provider, budget_usd=Decimal("0.50")) as gateway:`, or `sync()` in scripts.
    Leaving the block, also after an error, finishes the calls in flight, keeps all records, and closes the
    providers.

    In a program of `replay run FOLDER -- COMMAND`, it gets the recorded answers of `FOLDER`. The providers are
    not called, and `folder` is not used.

    Args:
        provider: One provider for all names, charged by the prices of the name in each envelope. With a
            mapping by name, other names are refused. Answers of a `RecordedAnswers` cost nothing.
        budget_usd: The most that the tenant may spend in US dollars, over all starts with the same log. A
            call whose usage exceeds its estimate is charged in full, and counted as an overrun.
        folder: The folder of the log. Spending, and limits and halts by operators, outlast the process there.
        store: A log in place of `folder`. It is not closed. A log in a file works as `folder` does.
        workers: Concurrent calls, 1 to 256.
        tenant: The tenant. Envelopes of other tenants are refused.
        checks: Checks beyond JSON Schema, by schema `$id`.
        models_file: A table of models, in addition to the shipped one.
        prices_file: A table of prices, in addition to the shipped one.
        policy: A policy file.
        sign_as: The principal of the policy that this gateway acts as.
        tools: The tools that envelopes may name in `tools_allowed`.

    Raises:
        ValueError: If both `folder` and `store` are given, or the budget is invalid. Also raises the errors
            of `Platform`.

    """
    providers = Providers(provider) if isinstance(provider, Mapping) else Providers.every(provider)
    async with PortStack() as opened:
        opened.keep(providers)
        if folder is not None and store is not None:
            raise ValueError("both folder and store are given. Give one of them, because each is the log")
        if (replayed := await replayed_gateway(None if folder is None else Path(folder))) is not None:
            if store is not None:
                raise ValueError("`replay run` cannot replay a store. Give folder instead")
            recording, folder = replayed
            providers = Providers.every(recording)
        config = PlatformConfig(
            folder=None if folder is None else Path(folder),
            tenants={tenant: TenantConfig(budget_usd=budget_usd)},
            concurrency=workers,
            models_file=models_file,
            prices_file=prices_file,
            policy=policy,
            sign_as=sign_as,
        )
        ports = Ports(providers=providers, store=store)
        yield await opened.enter(Platform(config, ports, checks=checks, tools=tools))

"""A gateway within an application, in one call."""

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
    """Return a gateway in this process: a platform whose calls `provider` answers, and that spends `budget_usd` at most.

    Open it with `async with`, or with `sync()` in scripts and notebooks. The budget is that of `tenant` over all starts.
    `provider` answers to every name, and is charged by the row of the name in the envelope: name the one that it is. A
    mapping serves the names in it, and what names another one is refused. A `RecordedAnswers` is a replay: its answers cost
    nothing, and their results have `served_from="recorded"` and `first_cost_nusd`. `sign_as` is the principal of `policy`, `tools`
    are those that envelopes may name. The log
    is kept in `folder`, or in `store`, which stays open, as it was handed in open. Where it is in a file, that
    folder is the memory: what was spent before is spent, and limits and halts that `agentic-trading budget` and `halt`
    write there hold. That the budget holds is true as long as no usage passes its estimate; one that does is charged
    all the same, and counted.

    An envelope of another tenant is refused. Leaving the block, also by an error, finishes the calls under way, keeps
    what was recorded and closes the providers. Raises what `Platform` raises, and `ValueError` without a budget of
    whole nano-dollars, or with both a folder and a store.
    """
    providers = Providers(provider) if isinstance(provider, Mapping) else Providers.every(provider)
    async with PortStack() as opened:
        opened.keep(providers)
        if folder is not None and store is not None:
            raise ValueError("both folder and store are given; allowed is one of them, as each has the log")
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

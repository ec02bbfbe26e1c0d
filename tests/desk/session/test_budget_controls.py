"""Budgets are put together as a run asks for them; what cannot be is refused before anything is written."""

import asyncio
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from agentic_trading.desk.session import run as session_run
from agentic_trading.governance.control_stores.file import MemoryControlStore
from agentic_trading.governance.controls_document import TenantControls
from agentic_trading.governance.errors import ControlsUnavailableError, LedgerSettingsError
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.operate import choices
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import ConfigError, OptionError
from agentic_trading.platform.port_adapters import ledger_of
from tests import redis_server
from tests.flows.sessions import SAMPLES, options, ran
from tests.governance.asking import ask, spend

POLICY = '[principals.desk]\ntenants = ["default"]\nmodels = ["rules/*"]\n'


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY, encoding="utf-8")
    return path


async def refused(tmp_path: Path, error: type[Exception], match: str, **changes: Any) -> None:
    """Check that a run is refused, and has written nothing."""
    out = tmp_path / "out"
    with pytest.raises(error, match=match):
        await ran(out, data=SAMPLES[:1], bars=20, **changes)
    assert not out.exists()


async def test_unlisted_principal_is_rejected(tmp_path: Path, policy: Path) -> None:
    await refused(
        tmp_path,
        ConfigError,
        r"sign_as is 'somebody'. Allowed: desk",
        policy_file=policy,
        principal="somebody",
    )


async def test_policy_requires_a_principal(tmp_path: Path, policy: Path) -> None:
    await refused(
        tmp_path,
        ConfigError,
        "sign_as is not set, but principals are configured. Allowed: desk",
        policy_file=policy,
    )


async def test_principal_without_policy_is_rejected(tmp_path: Path) -> None:
    await refused(tmp_path, ConfigError, "a name of a policy that has principals", principal="desk")


async def test_policy_error_shows_location(tmp_path: Path, policy: Path) -> None:
    wrong = policy.with_name("wrong.toml")
    await asyncio.to_thread(wrong.write_text, POLICY.replace("rules/*", "ruler/*"), encoding="utf-8")

    await refused(
        tmp_path, ConfigError, r"principals\.desk\.models\[1\]", policy_file=wrong, principal="desk"
    )


async def test_unreachable_server_is_reported_early(tmp_path: Path) -> None:
    await refused(tmp_path, ControlsUnavailableError, "127.0.0.1:1", ledger_url="redis://127.0.0.1:1")


async def test_shared_server_requires_budget(own_redis: redis_server.RealServer, tmp_path: Path) -> None:
    await refused(
        tmp_path,
        OptionError,
        "--budget-usd is left out, and .* has no limit on tenant default",
        ledger_url=own_redis.url,
    )


async def test_unsafe_server_persistence_is_rejected(tmp_path: Path) -> None:
    name = next(iter(redis_server.servers()))
    forgetful = tuple("everysec" if option == "always" else option for option in redis_server.SAFE)
    with redis_server.own_server("redis" if name == "given" else name, options=forgetful) as server:
        await refused(
            tmp_path,
            LedgerSettingsError,
            "appendfsync = 'everysec'. Allowed: always",
            ledger_url=server.url,
            budget_usd=Decimal(5),
        )


async def test_mismatched_time_zone_is_rejected(own_redis: redis_server.RealServer, tmp_path: Path) -> None:
    ledger = await asyncio.to_thread(lambda: ledger_of(own_redis.url, zone=ZoneInfo("America/New_York")))
    await spend(ledger, ask(1, tenant="default"))
    await ledger.aclose()
    in_utc = options(tmp_path, ledger_url=own_redis.url, budget_usd=Decimal(5))
    in_its_own = replace(in_utc, config=in_utc.config.model_copy(update={"zone": "America/New_York"}))

    await session_run.refuse_unusable_server(in_its_own)
    with pytest.raises(LedgerSettingsError, match=r"'America/New_York'. Allowed: UTC, .*AGENTIC_ZONE"):
        await session_run.refuse_unusable_server(in_utc)


async def test_existing_budget_is_not_reset() -> None:
    board = MemoryControlStore()
    limit = port_adapters.tenant_limit(5)

    for _ in range(2):
        await session_run.set_budget(board, "default", limit)

    assert (await board.read("default")).version == 1


@pytest.mark.parametrize(
    ("limit", "is_one"),
    [
        (Limit(ScopeKind.TENANT, ANY, Window.DAY, nusd=1), True),
        (Limit(ScopeKind.TENANT, "default", Window.NONE, nusd=0), True),
        (Limit(ScopeKind.TENANT, ANY, Window.DAY, calls=1), False),
        (Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=1), False),
    ],
)
def test_budget_is_tenant_money_limit(*, limit: Limit, is_one: bool) -> None:
    assert session_run.has_limits(TenantControls(limits=(limit,)).limits) is is_one


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@host:7000/3?x=1", "redis://host:7000"),
        ("rediss://host", "rediss://host"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
    ],
)
def test_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert choices.host_of(url) == shown

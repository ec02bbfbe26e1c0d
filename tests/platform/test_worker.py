"""What a worker and a run over a bus may be asked to be."""

from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.options import RunOptions
from agentic_trading.platform import BusConfig, ConfigError, LedgerConfig, PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.worker import worker_config

BUS, LEDGER = "kafka://127.0.0.1:1", "redis://127.0.0.1:1"


def made(**given: Any) -> PlatformConfig:
    return worker_config(
        None, runs=Path("runs"), **{"bus": BUS, "ledger": LEDGER, "providers": ["rules"], **given}
    )


def test_worker_defaults_to_machine_name_and_folder() -> None:
    config = made(name=None)

    assert config.name.startswith("worker@")
    assert config.folder == Path("runs/workers")
    assert list(config.providers) == ["rules"]


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"bus": None}, "--bus"),
        ({"ledger": None}, "--ledger"),
        ({"providers": []}, "--provider"),
        ({"tenants": ["acme"]}, "--tenant"),
        ({"mode": "backtest"}, "--mode"),
    ],
)
def test_missing_worker_option_is_named(given: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as refused:
        made(**given)

    assert refused.value.option == option


def test_worker_serves_only_the_named_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_BUS__NAMESPACE", "acme")

    assert made(tenants=["acme"]).tenant_ids == ("acme",)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"answers_from": (Path("x"),)}, "--answers-from"),
        ({"inject": "timeout=1%"}, "--inject"),
        ({"provider": "recorded", "recorded_from": Path("x")}, "--bus"),
    ],
)
def test_run_option_unsupported_on_bus_is_refused(changes: dict[str, Any], option: str) -> None:
    bus = BusConfig(url=BUS, namespace="backtest")
    config = PlatformConfig(mode="backtest", bus=bus, ledger=LedgerConfig(url=LEDGER))

    with pytest.raises(OptionError) as refused:
        RunOptions(("btcusdt-5m",), Path("out"), config=config, **changes)

    assert refused.value.option == option


@pytest.mark.parametrize(
    ("bus", "ledger", "option"),
    [(BusConfig(url=BUS), LEDGER, "--mode"), (BusConfig(url=BUS, namespace="b"), None, "--ledger")],
)
def test_bus_backtest_needs_namespace_and_ledger(bus: BusConfig, ledger: str | None, option: str) -> None:
    config = PlatformConfig(mode="backtest", bus=bus, ledger=LedgerConfig(url=ledger))

    with pytest.raises(OptionError) as refused:
        RunOptions(("btcusdt-5m",), Path("out"), config=config)

    assert refused.value.option == option


@pytest.mark.parametrize("fields", [{"username": "w", "password_file": "p"}, {"ca_file": "ca.pem"}])
def test_unencrypted_redis_bus_refuses_credentials(fields: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"a redis:// URL, which is not encrypted\. Allowed: rediss://HOST:PORT"
    ):
        PlatformConfig.model_validate({"bus": {"url": "redis://127.0.0.1:1", **fields}})

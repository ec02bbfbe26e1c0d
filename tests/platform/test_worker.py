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


def test_a_worker_has_a_name_of_its_machine_and_a_log_below_the_runs() -> None:
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
def test_what_a_worker_lacks_is_named(given: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as refused:
        made(**given)

    assert refused.value.option == option


def test_a_worker_of_one_tenant_serves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_what_does_not_go_over_a_bus_is_refused(changes: dict[str, Any], option: str) -> None:
    bus = BusConfig(url=BUS, namespace="backtest")
    config = PlatformConfig(mode="backtest", bus=bus, ledger=LedgerConfig(url=LEDGER))

    with pytest.raises(OptionError) as refused:
        RunOptions(("btcusdt-5m",), Path("out"), config=config, **changes)

    assert refused.value.option == option


@pytest.mark.parametrize(
    ("bus", "ledger", "option"),
    [(BusConfig(url=BUS), LEDGER, "--mode"), (BusConfig(url=BUS, namespace="b"), None, "--ledger")],
)
def test_a_backtest_over_a_bus_is_apart_and_has_the_ledger_of_its_workers(
    bus: BusConfig, ledger: str | None, option: str
) -> None:
    config = PlatformConfig(mode="backtest", bus=bus, ledger=LedgerConfig(url=ledger))

    with pytest.raises(OptionError) as refused:
        RunOptions(("btcusdt-5m",), Path("out"), config=config)

    assert refused.value.option == option


@pytest.mark.parametrize("fields", [{"username": "w", "password_file": "p"}, {"ca_file": "ca.pem"}])
def test_a_password_goes_to_no_redis_that_encrypts_nothing(fields: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"a redis:// URL, which is not encrypted. Allowed: rediss://HOST:PORT"
    ):
        PlatformConfig.model_validate({"bus": {"url": "redis://127.0.0.1:1", **fields}})

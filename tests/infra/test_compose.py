"""The compose file keeps its promises and fits the program; it is parsed here, not started."""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from agentic_trading.bus.brokers.kafka.admin import planned_topics
from agentic_trading.platform.adapters import functions_in
from agentic_trading.platform.check import check_platform
from agentic_trading.platform.settings import load_config
from agentic_trading.platform.worker import worker_config
from agentic_trading.platform.workers import CANCELLED_WITHIN_S
from agentic_trading.worker.outbox import DRAIN_S
from tests.whole_program import whole_program

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
WORKERS = [name for name in OURS if SERVICES[name]["command"][0] == "worker"]
DOCKERFILE = (ROOT / "infra/Dockerfile").read_text(encoding="utf-8")
FLEET = ROOT / "infra/fleet.toml"

every_service = pytest.mark.parametrize("name", sorted(SERVICES))


def settings(path: Path, separator: str | None) -> dict[str, str]:
    """Read a file of `key separator value` lines; lines that start with # are comments."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.split(separator, 1) for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def mounts(name: str) -> list[tuple[str, str]]:
    """Return what a service mounts, as (source, target)."""
    return [
        (source, target) for source, target, *_ in (v.split(":") for v in SERVICES[name].get("volumes", ()))
    ]


def on_the_host(name: str, path: Path) -> Path:
    """Return what a service sees at `path`."""
    for source, target in mounts(name):
        if path.is_relative_to(target) and source.startswith("./"):
            return ROOT / source / path.relative_to(target)
    raise AssertionError(f"{name} does not mount {path}")


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command of ours as the program reads them; raises what it raises for a wrong one."""
    command: Any = whole_program()
    words = list(words)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        raise ValueError(f"{words[0]} is no command of {command.name}")
    given: dict[str, Any] = command.make_context(command.name, words).params
    return given


def parsed(name: str) -> dict[str, Any]:
    """Return the options of a service's command."""
    return options_of(SERVICES[name]["command"])


def test_compose_file_defines_all_services() -> None:
    assert set(SERVICES) == {"kafka", "redis", "topics", "worker-1", "worker-2", "archiver", "prometheus"}
    assert OURS == ["archiver", "topics", "worker-1", "worker-2"]


@pytest.mark.parametrize("name", sorted(set(SERVICES) - set(OURS)))
def test_images_are_pinned_to_full_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].rpartition(":")

    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"topics", "archiver"}))
def test_services_have_a_healthcheck(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= set(check)


@every_service
def test_ports_are_bound_to_loopback(name: str) -> None:
    ports = SERVICES[name].get("ports", [])

    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert bool(ports) is (name not in {"topics", "archiver"})


def test_host_ports_are_unique() -> None:
    ports = [port.rsplit(":", 1)[0] for service in SERVICES.values() for port in service.get("ports", ())]

    assert len(ports) == len(set(ports))


@every_service
def test_mounted_paths_and_volumes_exist(name: str) -> None:
    for source, _ in mounts(name):
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]


def test_volumes_are_not_shared() -> None:
    named = [source for name in SERVICES for source, _ in mounts(name) if not source.startswith("./")]

    assert sorted(named) == sorted(COMPOSE["volumes"])


@every_service
def test_dependency_conditions_can_be_met(name: str) -> None:
    for other, awaited in SERVICES[name].get("depends_on", {}).items():
        if awaited["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        else:
            assert (awaited["condition"], SERVICES[other]["restart"]) == (
                "service_completed_successfully",
                "no",
            )


def test_unknown_command_or_option_is_refused() -> None:
    for words in (
        ["wrker"],
        ["topics", "make"],
        ["worker", "--nam", "w"],
        ["archive", "--keep"],
        ["dlq", "show"],
    ):
        with pytest.raises((ValueError, typer.BadParameter.__bases__[0])):
            options_of(words)


# --- the program ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_service_commands_and_files_exist(name: str) -> None:
    given = parsed(name)

    if name != "topics":
        assert on_the_host(name, given["config"]).is_file()
        assert any(
            given["store"].is_relative_to(target) for source, target in mounts(name) if source[0] != "."
        )
    assert SERVICES[name]["init"] is True


def test_fleet_configuration_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTIC_LEDGER_URL", raising=False)

    config = load_config(FLEET)

    assert asyncio.run(check_platform(config)) == []
    assert list(config.providers) == ["rules"]
    assert {"checks": dict(config.checks), "rules": dict(config.rules)} == functions_in(["agentic-trading"])
    assert (
        config.bus.url
        == "kafka://" + SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].rpartition("//")[2]
    )
    assert config.ledger.url == f"redis://redis:{SERVICES['redis']['ports'][0].rpartition(':')[2]}/0"
    assert config.secrets_folder == FLEET.parent / "secrets"


@pytest.mark.parametrize("name", WORKERS)
def test_worker_command_matches_the_configuration(name: str, tmp_path: Path) -> None:
    given = parsed(name)
    config = worker_config(FLEET, runs=tmp_path, name=given["name"], folder=given["store"])
    port = given["http"].rpartition(":")[2]

    assert config.name == name
    assert on_the_host(name, given["config"].parent / "secrets") == FLEET.parent / "secrets"
    assert SERVICES[name]["ports"][0].rpartition(":")[2] == port
    assert f"http://127.0.0.1:{port}/readyz" in SERVICES[name]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("name", WORKERS)
def test_worker_has_time_to_stop(name: str) -> None:
    grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))

    assert grace > parsed(name)["drain_s"] + CANCELLED_WITHIN_S + 2 * DRAIN_S


def test_image_copies_existing_files_without_root() -> None:
    copied = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if line.startswith("COPY ")]
    sources = [source for words in copied for source in words if not words[0].startswith("--from")]
    ignored = (ROOT / "infra/Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    stage = DOCKERFILE.rpartition("FROM ")[2]
    entry = next(line for line in stage.splitlines() if line.startswith("ENTRYPOINT "))

    assert all((ROOT / source).exists() for source in sources)
    assert {f"!{Path(source)}" for source in sources} == {line for line in ignored if line.startswith("!")}
    assert "pip install --no-cache-dir '.' -c constraints.txt" in DOCKERFILE
    assert re.search(r"^USER (?!root)\w+$", stage, re.MULTILINE)
    assert json.loads(entry.removeprefix("ENTRYPOINT ")) == ["agentic-trading"]


# --- Kafka ------------------------------------------------------------------------------------------------


def test_kafka_runs_in_kraft_mode() -> None:
    environment = SERVICES["kafka"]["environment"]
    listeners = {part.split("://")[0] for part in environment["KAFKA_LISTENERS"].split(",")}
    protocols = {
        part.split(":")[0] for part in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    }

    assert set(environment["KAFKA_PROCESS_ROLES"].split(",")) == {"broker", "controller"}
    assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"].startswith(f"{environment['KAFKA_NODE_ID']}@kafka:")
    assert environment["KAFKA_CONTROLLER_LISTENER_NAMES"] in listeners
    assert environment["KAFKA_INTER_BROKER_LISTENER_NAME"] in listeners
    assert listeners == protocols
    assert not [key for key in environment if "ZOOKEEPER" in key]


def test_kafka_image_has_tested_version() -> None:
    pom = (ROOT / "agentic_trading/services/pom.xml").read_text(encoding="utf-8")

    assert f"<kafka.version>{SERVICES['kafka']['image'].rpartition(':')[2]}<" in pom


def test_kafka_log_uses_named_volume() -> None:
    properties = settings(ROOT / "infra/kafka/server.properties", "=")

    assert ("kafka-data", properties["log.dirs"]) in mounts("kafka")


def test_single_kafka_node_requests_no_replicas() -> None:
    properties = settings(ROOT / "infra/kafka/server.properties", "=")

    copies = {
        key: value for key, value in properties.items() if key.endswith((".replication.factor", ".min.isr"))
    }
    assert len(copies) == 5
    assert set(copies.values()) == {"1"}


def test_topic_settings_match_bus_and_server() -> None:
    properties = settings(ROOT / "infra/kafka/server.properties", "=")
    given = parsed("topics")
    plans = planned_topics(partitions=given["partitions"], retention_days=given["retention_days"])

    hours_ms = int(properties["log.retention.hours"]) * 3_600_000
    assert {plan.settings["retention.ms"] for plan in plans} == {str(hours_ms)}
    assert plans == planned_topics(partitions=given["partitions"])
    assert properties["num.partitions"] == str(given["partitions"])
    assert given["partitions"] >= len(WORKERS)
    largest = max(int(plan.settings["max.message.bytes"]) for plan in plans)
    assert min(int(properties["message.max.bytes"]), int(properties["replica.fetch.max.bytes"])) >= largest
    assert given["bus"] == load_config(FLEET).bus.url


# --- Redis ------------------------------------------------------------------------------------------------


def test_redis_syncs_writes_and_never_evicts() -> None:
    configuration = settings(ROOT / "infra/redis/redis.conf", None)

    assert configuration["appendonly"] == "yes"
    assert configuration["appendfsync"] == "always"
    assert configuration["no-appendfsync-on-rewrite"] == "no"
    assert configuration["maxmemory-policy"] == "noeviction"


def test_redis_uses_mounted_config_and_volume() -> None:
    configuration = settings(ROOT / "infra/redis/redis.conf", None)

    assert SERVICES["redis"]["command"][-1] in {target for _, target in mounts("redis")}
    assert ("redis-data", configuration["dir"]) in mounts("redis")


@pytest.mark.parametrize("file", ["docker-compose.yml", "infra/Dockerfile", "infra/README.md"])
def test_files_mention_not_run_here(file: str) -> None:
    assert "not run here" in (ROOT / file).read_text(encoding="utf-8").lower()

"""The compose file keeps its promises; it is parsed here, not started."""

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]

every_service = pytest.mark.parametrize("name", sorted(SERVICES))


def settings(path: Path, separator: str | None) -> dict[str, str]:
    """Read a file of `key separator value` lines; lines that start with # are comments."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.split(separator, 1) for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, value in pairs}


def mounts(name: str) -> list[tuple[str, str]]:
    """Return what a service mounts, as (source, target)."""
    return [(source, target) for source, target, *_ in (v.split(":") for v in SERVICES[name]["volumes"])]


def test_kafka_and_redis_are_there() -> None:
    assert {"kafka", "redis"} <= set(SERVICES)


@every_service
def test_an_image_is_pinned_to_a_full_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].rpartition(":")

    assert tag.count(".") == 2
    assert tag.replace(".", "").isdigit()


@every_service
def test_a_service_says_when_it_is_healthy(name: str) -> None:
    check = SERVICES[name]["healthcheck"]

    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert {"interval", "timeout", "retries"} <= set(check)


@every_service
def test_a_port_is_bound_to_loopback_only(name: str) -> None:
    assert SERVICES[name]["ports"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name]["ports"])


@every_service
def test_every_mounted_path_exists_and_every_volume_is_declared(name: str) -> None:
    for source, _ in mounts(name):
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]


def test_kafka_runs_in_kraft_mode_as_broker_and_controller() -> None:
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


def test_kafka_keeps_its_log_on_the_named_volume() -> None:
    properties = settings(ROOT / "infra/kafka/server.properties", "=")

    assert ("kafka-data", properties["log.dirs"]) in mounts("kafka")


def test_one_kafka_node_asks_for_no_copies_that_it_cannot_make() -> None:
    properties = settings(ROOT / "infra/kafka/server.properties", "=")

    copies = {
        key: value for key, value in properties.items() if key.endswith((".replication.factor", ".min.isr"))
    }
    assert len(copies) == 5
    assert set(copies.values()) == {"1"}


def test_redis_has_every_write_on_disk_and_evicts_nothing() -> None:
    configuration = settings(ROOT / "infra/redis/redis.conf", None)

    assert configuration["appendonly"] == "yes"
    assert configuration["appendfsync"] == "always"
    assert configuration["no-appendfsync-on-rewrite"] == "no"
    assert configuration["maxmemory-policy"] == "noeviction"


def test_redis_reads_the_mounted_file_and_keeps_its_data_on_the_named_volume() -> None:
    configuration = settings(ROOT / "infra/redis/redis.conf", None)

    assert SERVICES["redis"]["command"][-1] in {target for _, target in mounts("redis")}
    assert ("redis-data", configuration["dir"]) in mounts("redis")


def test_the_file_says_that_it_is_not_run_here() -> None:
    assert "NOT RUN HERE" in (ROOT / "docker-compose.yml").read_text(encoding="utf-8")

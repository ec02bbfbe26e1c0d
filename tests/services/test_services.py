"""`agentic-trading services`: real servers are started, found, stopped, and keep their data and addresses."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_trading.services.local import (
    KafkaService,
    RedisService,
    ServiceError,
    _cluster_id,
    ensure_jars,
    kafka_version,
)
from tests import kafka_server

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
needs_redis = pytest.mark.skipif(
    not (shutil.which("redis-server") or shutil.which("valkey-server")),
    reason="neither redis-server nor valkey-server is installed",
)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisService]:
    service = RedisService(tmp_path / "redis")
    yield service
    service.daemon.kill()


def command(*words: str) -> str:
    """Run the program as a process of its own, which what it starts outlives; return what it printed."""
    program = [
        sys.executable,
        "-c",
        "from agentic_trading.cli.main import main; main()",
        "services",
        *words,
    ]
    return subprocess.run(program, capture_output=True, check=True, text=True).stdout


def said(url: str, words: bytes) -> bytes:
    """Send Redis one command in its inline form, and return the answer."""
    host, _, port = url.removeprefix("redis://").removesuffix("/0").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(words + b"\r\n")
        return connection.recv(100)


@needs_redis
def test_redis_keeps_data_and_address(redis: RedisService) -> None:
    redis.start()
    before = redis.url
    said(before, b"SET k v")

    redis.daemon.kill()
    redis.start()

    assert redis.url == before
    assert said(redis.url, b"GET k") == b"$1\r\nv\r\n"
    assert b"always" in said(redis.url, b"CONFIG GET appendfsync")


@needs_redis
def test_services_are_started_shown_and_stopped(tmp_path: Path) -> None:
    place = ("--dir", str(tmp_path))
    try:
        started = command("start", "redis", *place)
        again = command("start", "redis", *place)
        shown = json.loads(command("status", "--json", *place))
    finally:
        command("stop", *place)

    assert started.startswith("AGENTIC_LEDGER_URL=redis://127.0.0.1:")
    assert again == started
    assert shown["redis"]["address"] in started
    assert shown["kafka"] == {"pid": None, "address": None}
    assert command("status", *place) == "# kafka is not running\n# redis is not running\n"


@pytest.mark.soak
def test_kafka_keeps_address_after_crash(own_kafka: KafkaService) -> None:
    before = own_kafka.bootstrap_servers
    cluster = (own_kafka.folder / "data" / "meta.properties").read_text(encoding="utf-8")

    own_kafka.kill()
    own_kafka.start()

    assert own_kafka.bootstrap_servers == before
    assert (own_kafka.folder / "data" / "meta.properties").read_text(encoding="utf-8") == cluster
    assert own_kafka.stop()


def test_unstarted_service_has_no_address(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="was never started in"):
        _ = KafkaService(tmp_path, tmp_path).bootstrap_servers
    with pytest.raises(ServiceError, match="was never started in"):
        _ = RedisService(tmp_path).url


def test_cluster_id_never_resembles_an_option() -> None:
    made = [_cluster_id() for _ in range(1000)]

    assert all(re.fullmatch(r"\w{22}", each) for each in made)
    assert len(set(made)) == 1000


def test_existing_jars_suffice_without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ServiceError, match=r"mvn is not on PATH\. Install it"):
        ensure_jars(tmp_path)
    jars = tmp_path / kafka_version() / "jars"
    jars.mkdir()

    assert ensure_jars(tmp_path) == jars

"""Where a run of `chaos.py` takes place: a bus, a Redis with ledger and claims, a provider, and the folder of all of them."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from subprocess import DEVNULL

from agentic_trading.bus.topic import Broker
from agentic_trading.platform.port_adapters import broker_of
from agentic_trading.platform.settings import load_config
from agentic_trading.services.local import KafkaService, RedisService
from benchmarks.chaos_provider import INPUT_NUSD, MODEL, OUTPUT_NUSD
from benchmarks.peers.contender import ROOT

PROGRAM = Path(sys.executable).parent / "agentic-trading"
PARTITIONS = 6
"""Of each topic on Kafka; on Redis there are as many as that has by default."""


class Bus(StrEnum):
    """What the bus of a run is on."""

    KAFKA = "kafka"
    REDIS = "redis"

    def service(self, folder: Path) -> KafkaService | RedisService:
        """Return its server, with its data in `folder`; it does not run yet."""
        if self is Bus.KAFKA:
            return KafkaService.prepared(folder, ends_with_starter=True)
        return RedisService(folder, ends_with_starter=True)


@dataclass
class Place:
    """Where a run takes place: its servers, its provider, its folder. A bus on Redis has a server of its own."""

    folder: Path
    bus: KafkaService | RedisService
    redis: RedisService
    provider: "subprocess.Popen[str]"

    @property
    def bus_name(self) -> str:
        """What the server of the bus is called in what is printed."""
        return "Kafka" if isinstance(self.bus, KafkaService) else "Redis of the bus"

    @property
    def bus_url(self) -> str:
        """The address of the bus."""
        return f"kafka://{self.bus.bootstrap_servers}" if isinstance(self.bus, KafkaService) else self.bus.url

    @property
    def config(self) -> Path:
        """The configuration of workers and client."""
        return self.folder / "fleet.toml"

    @property
    def logs(self) -> Path:
        """Where the folders of the workers are."""
        return self.folder / "logs"

    @property
    def invoice(self) -> Path:
        """What the provider has billed."""
        return self.folder / "invoice.jsonl"

    def broker(self) -> Broker:
        """Return a client of the bus; who asks closes it."""
        return broker_of(load_config(self.config))

    def copy_redis(self) -> None:
        """Keep what the Redis of the ledger has on disk; it must not run."""
        shutil.copytree(self._appended, self._older)

    def set_redis_back(self) -> None:
        """Put what was kept in the place of what the Redis of the ledger has; it must not run."""
        shutil.rmtree(self._appended)
        shutil.copytree(self._older, self._appended)

    async def rebuild(self) -> tuple[int, str]:
        """Rebuild the ledger from the logs of all workers, as an operator does; return the exit code, and what was said."""
        stores = [
            word for each in sorted(self.logs.iterdir()) if each.is_dir() for word in ("--store", str(each))
        ]
        command = [str(PROGRAM), "budget", "rebuild", "--ledger", self.redis.url, *stores]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        return process.returncode or 0, " ".join(said.decode().split())

    @property
    def _appended(self) -> Path:
        return self.redis.folder / "appendonlydir"

    @property
    def _older(self) -> Path:
        return self.folder / "older"


@contextmanager
def placed(folder: Path, bus: Bus) -> Generator[Place]:
    """Run the servers and the provider for as long as the block lasts, with topics and a configuration."""
    server = bus.service(folder / "bus")
    redis = RedisService(folder / "redis", ends_with_starter=True)
    command = [sys.executable, "-m", "benchmarks.chaos_provider", str(folder / "invoice.jsonl")]
    server.start()
    try:
        redis.start()
        with subprocess.Popen(  # noqa: S603 - our own module
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as provider:
            place = Place(folder, server, redis, provider)
            try:
                assert provider.stdout is not None
                _configure(place, int(provider.stdout.readline()))
                _make_topics(place)
                yield place
            finally:
                provider.kill()
    finally:
        redis.daemon.kill()
        server.daemon.kill()


def _make_topics(place: Place) -> None:
    partitions = ["--partitions", str(PARTITIONS)] if isinstance(place.bus, KafkaService) else []
    create = [str(PROGRAM), "topics", "create", "--bus", place.bus_url, *partitions]
    subprocess.run(create, check=True, stdin=DEVNULL, stdout=DEVNULL)  # noqa: S603 - our own command


def _configure(place: Place, port: int) -> None:
    place.logs.mkdir()
    place.config.write_text(
        f"""
mode = "paper"
concurrency = 16
ack_after = "stream"
[bus]
url = "{place.bus_url}"
[ledger]
url = "{place.redis.url}"
[tenants.default]
budget_usd = "1000"
[providers.stub]
adapter = "benchmarks.chaos_provider:numbered"
base_url = "http://127.0.0.1:{port}/v1"
[[providers.stub.models]]
model = "{MODEL}"
context_tokens = 32768
max_output_tokens = 4096
price = {{ input = {INPUT_NUSD}, output = {OUTPUT_NUSD} }}
source = "benchmarks/chaos_provider.py"
checked_on = 2026-11-22
""",
        encoding="utf-8",
    )

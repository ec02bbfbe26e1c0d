"""Start and stop a local Kafka and Redis.

Each has its own folder and is found again by process id.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.clock import SystemClock
from agentic_trading.errors import TradingError
from agentic_trading.files import locked
from agentic_trading.ids import random_id

HOST: Final = "127.0.0.1"
"""The only address that local services listen on."""

LOOKS_EVERY_S: Final = 0.02
PORTS: Final = range(10240, 32768)
"""Ports below the system's ephemeral range, so that a killed server gets its port again, and a client that
connects meanwhile is not connected to itself."""


class ServiceError(TradingError):
    """A local `service` cannot be prepared, started or stopped.

    `why` contains the reason and the fix.
    """

    def __init__(self, service: str, why: str) -> None:
        self.service = service
        self.why = why
        super().__init__(f"{service}: {why}")


def free_port(taken: Sequence[int] = ()) -> int:
    """Return a free loopback port that is not in `taken`.

    Raises `ServiceError` if there is none.
    """
    # Begin at another port in each process, because two of them would otherwise pick the same free port.
    offset = os.getpid() * 7919 % len(PORTS)
    for port in chain(PORTS[offset:], PORTS[:offset]):
        if port not in taken and is_free(port):
            return port
    raise ServiceError(
        "services", f"no port between {PORTS.start} and {PORTS.stop - 1} is free. Stop a server."
    )


def is_free(port: int) -> bool:
    """Whether a server can listen on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def program(service: str, *names: str) -> str:
    """Return the path of the first installed program.

    Raises `ServiceError` if none is installed.
    """
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise ServiceError(service, f"{' or '.join(names)} is not on PATH. Install it.")


@dataclass(slots=True)
class Daemon:
    """The background program `name`, with its log and its process id in `folder`.

    It continues when the process that started it ends, unless `ends_with_starter`, which keeps killed test
    runs from leaving servers behind. Only one process at a time may use it.
    """

    name: str
    folder: Path
    ends_with_starter: bool = False
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    @property
    def log(self) -> Path:
        """The file with the output of the program."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """The id of the running process, or None.

        It is also None if another process has the id by now.
        """
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(self._note.read_bytes())
            pid, begun = int(noted["pid"]), noted["begun"]
            if _begun(pid) == begun:
                return pid
        return None

    def start(self, command: Sequence[str], is_ready: Callable[[str], bool], *, within_s: float) -> None:
        """Start `command`, and return when `is_ready` accepts its output.

        Raises:
            ServiceError: If it runs already, ends early, or is not ready within `within_s` seconds. It is
                then stopped, and the error contains the end of its log.

        """
        if self.pid is not None:
            raise ServiceError(self.name, f"already running with process id {self.pid}. Stop it first.")
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(  # noqa: S603 - a program that is named in this package
                [*self._prefix(), *command],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        pid = self._process.pid
        self._note.write_text(json.dumps({"pid": pid, "begun": _begun(pid)}), encoding="utf-8")
        if not _within(within_s, lambda: self.pid is None or is_ready(self._printed())) or self.pid is None:
            self.kill()
            raise ServiceError(
                self.name, f"did not start within {within_s:g} s. End of {self.log}:\n{self.tail()}"
            )

    def stop(self, *, within_s: float = 30.0) -> bool:
        """Stop it with SIGTERM, and after `within_s` seconds with SIGKILL.

        Return whether it was running. Repeated calls have no effect.
        """
        pid = self.pid
        if pid is None:
            return False
        self.send(signal.SIGCONT)  # a suspended process would not react to SIGTERM
        self.send(signal.SIGTERM)
        if not _within(within_s, lambda: self.pid is None):
            self.kill()
        self._forget()
        return True

    def kill(self) -> None:
        """Stop it with SIGKILL, as in a crash. Repeated calls have no effect."""
        self.send(signal.SIGKILL)
        _within(5.0, lambda: self.pid is None)
        self._forget()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it is running."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def tail(self) -> str:
        """Return the end of its output."""
        return self._printed()[-3000:]

    @property
    def _note(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def _printed(self) -> str:
        try:
            return self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _prefix(self) -> list[str]:
        setpriv = shutil.which("setpriv") if self.ends_with_starter else None
        return [setpriv, "--pdeathsig", "KILL"] if setpriv else []

    def _forget(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        self._note.unlink(missing_ok=True)


def _begun(pid: int) -> str:
    """Return the start time of a process, as the system counts it.

    Raises `OSError` if it is not running. Without `/proc`, it is empty, so that any existing process with
    this id matches.
    """
    os.kill(pid, 0)
    stat = Path(f"/proc/{pid}/stat")
    if not stat.parent.parent.is_dir():
        return ""
    state, *fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    if state == "Z":
        raise ProcessLookupError(pid)
    return fields[18]


def _within(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether `condition` becomes true within `seconds`."""
    clock = SystemClock()
    until = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > until:
            return False
        time.sleep(LOOKS_EVERY_S)
    return True


CACHE: Final = Path("~/.cache/agentic-trading/kafka")
"""The folder of the artifacts and the class archive, shared by all servers of this user."""

POM: Final = Path(__file__).with_name("pom.xml")
READY: Final = "Kafka Server started"
SMALL_JVM: Final = ("-Xms64m", "-Xmx256m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET_LOG: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)

SETTINGS: Final[Mapping[str, object]] = MappingProxyType({
    "process.roles": "broker,controller",
    "node.id": 1,
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "num.partitions": 1,
    "default.replication.factor": 1,
    "min.insync.replicas": 1,
    # Internal topics have one partition, because the first reader would wait until 50 logs are created.
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    # Groups start without a wait of 3 s for a second member, and tests may use short sessions.
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    # Short, because a killed server can register again only after its old session has ended.
    "broker.session.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 300,
    "log.cleaner.dedupe.buffer.size": 2097152,  # the default would exceed the heap
    "log.cleaner.io.buffer.size": 131072,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "background.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
    "group.coordinator.threads": 1,
    "group.coordinator.background.threads": 1,
})


def kafka_version() -> str:
    """Return the version of Kafka in `pom.xml`."""
    found = re.search(r"<kafka\.version>([^<]+)<", POM.read_text(encoding="utf-8"))
    if found is None:
        raise ServiceError("kafka", f"{POM} has no kafka.version. Install the package again.")
    return found[1]


def ensure_jars(cache: Path = CACHE) -> Path:
    """Return the folder with the server's artifacts. Maven downloads them once.

    Raises `ServiceError` if Maven is not installed or cannot download them.
    """
    home = cache.expanduser() / kafka_version()
    jars = home / "jars"
    with locked(home / "jars.lock"):
        if jars.is_dir():
            return jars
        partial = home / "jars.partial"
        shutil.rmtree(partial, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        done = _run([program("kafka", "mvn"), "-B", "-q", "-C", "-f", str(POM), *goal])
        if done.returncode or not list(partial.glob("kafka_2.13-*.jar")):
            shutil.rmtree(partial, ignore_errors=True)
            raise ServiceError("kafka", f"Maven could not download the artifacts:\n{done.stdout[-2000:]}")
        partial.rename(jars)
    return jars


def ensure_class_archive(jars: Path) -> list[str]:
    """Return the Java options for an archive of the server's classes.

    It is created once, in about ten seconds. With it, a server is ready in one second instead of three. If it
    cannot be created, there are no options.
    """
    java = Path(program("kafka", "java")).resolve()
    files = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in [java, *sorted(jars.iterdir())]
    ]
    digest = hashlib.sha256(repr((str(jars), files)).encode()).hexdigest()[:16]
    archive = jars.parent / f"{digest}.jsa"
    with locked(jars.parent / "archive.lock"):
        if not archive.exists():
            folder, partial = jars.parent / "training", archive.with_suffix(".partial")
            shutil.rmtree(folder, ignore_errors=True)
            training = KafkaService(
                folder, jars, (f"-XX:ArchiveClassesAtExit={partial}",), ends_with_starter=True
            )
            training.start(within_s=60.0)
            training.stop()  # Java writes the archive when it exits
            shutil.rmtree(folder, ignore_errors=True)
            if not partial.exists():
                return []
            partial.rename(archive)
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


@dataclass(slots=True)
class KafkaService:
    """A Kafka server with one node.

    Its data is in `folder`, and survives `kill` and `start`. Its ports are chosen once. Any client on this
    machine may connect. Topics are not created automatically. `listeners` are additional listeners with their
    protocols (`SASL_SSL`). `users` have passwords for SCRAM-SHA-512. `settings` override the defaults.
    """

    folder: Path
    jars: Path
    jvm_options: tuple[str, ...] = ()
    ends_with_starter: bool = False
    listeners: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    settings: Mapping[str, object] = field(default_factory=dict)
    daemon: Daemon = field(init=False)

    def __post_init__(self) -> None:
        self.daemon = Daemon("kafka", self.folder, self.ends_with_starter)

    @classmethod
    def prepared(cls, folder: Path, *, ends_with_starter: bool = False, **options: Any) -> "KafkaService":
        """Return a server whose artifacts and class archive exist. Raises `ServiceError`."""
        jars = ensure_jars()
        return cls(folder, jars, tuple(ensure_class_archive(jars)), ends_with_starter, **options)

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, `HOST:PORT`. Raises `ServiceError` before the first start."""
        return self.address_of("PLAINTEXT")

    def address_of(self, listener: str) -> str:
        """Return the address of a listener, `HOST:PORT`.

        Raises `ServiceError` before the first start.
        """
        found = re.search(rf"^listeners=.*\b{listener}://([^,\n]+)", self._read_properties(), re.MULTILINE)
        if found is None:
            raise ServiceError("kafka", f"was never started in {self.folder}. Start it first.")
        return found[1]

    def start(self, *, within_s: float = 60.0) -> None:
        """Start it with its existing data, and return when it is ready.

        Raises `ServiceError` otherwise.
        """
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        self._write_properties(data)
        self._format(data)
        command = self._java("kafka.Kafka", str(self._properties))
        self.daemon.start(command, lambda printed: READY in printed, within_s=within_s)
        host, port = self.bootstrap_servers.split(":")
        socket.create_connection((host, int(port)), timeout=5.0).close()

    def stop(self) -> bool:
        """Stop it with SIGTERM. Return whether it was running."""
        return self.daemon.stop()

    def kill(self) -> None:
        """Stop it with SIGKILL, as in a crash."""
        self.daemon.kill()

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _read_properties(self) -> str:
        try:
            return self._properties.read_text(encoding="utf-8")
        except OSError:
            return ""

    def _write_properties(self, data: Path) -> None:
        protocols = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", **self.listeners}
        line = re.search(r"^listeners=(.*)$", self._read_properties(), re.MULTILINE)
        ports = [int(port) for port in re.findall(rf"{HOST}:(\d+)", line[1])] if line else []
        if len(ports) != len(protocols) or not all(map(is_free, ports)):
            ports = []
            for _ in protocols:
                ports.append(free_port(ports))
        named = [f"{name}://{HOST}:{port}" for name, port in zip(protocols, ports, strict=True)]
        settings = {
            **SETTINGS,
            "listeners": ",".join(named),
            "advertised.listeners": ",".join(named[1:]),
            "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in protocols.items()),
            "controller.quorum.voters": f"1@{HOST}:{ports[0]}",
            "log.dirs": data,
            **self.settings,
        }
        self._properties.write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8"
        )

    def _format(self, data: Path) -> None:
        """Write the files that a server requires in an empty folder."""
        # Kafka's own tool would start another JVM. The file of its first run is used again, because its feature
        # levels are equal for all clusters of a version.
        known, meta = self.jars.parent / "bootstrap.checkpoint", data / "meta.properties"
        if meta.exists():
            return
        cluster = _cluster_id()
        if known.exists() and not self.users:
            shutil.copy(known, data / known.name)
            meta.write_text(f"version=1\ncluster.id={cluster}\nnode.id=1\n", encoding="utf-8")
            return
        words = ["format", "-t", cluster, "-c", str(self._properties)]
        for name, password in self.users.items():
            words += ["--add-scram", f"SCRAM-SHA-512=[name={name},password={password}]"]
        done = _run(self._java("kafka.tools.StorageTool", *words))
        if done.returncode:
            raise ServiceError(
                "kafka", f"the storage tool could not format the data folder:\n{done.stdout[-2000:]}"
            )
        made = data / known.name
        if made.exists() and not self.users:
            partial = known.with_suffix(f".{cluster}")
            shutil.copy(made, partial)
            partial.rename(known)

    def _java(self, main: str, *words: str) -> list[str]:
        # Sorted, because the class archive is only valid for the same order of the class path.
        path = ":".join(sorted(map(str, self.jars.glob("*.jar"))))
        is_tool = main != "kafka.Kafka"
        options = [each for each in self.jvm_options if not (is_tool and "ArchiveClassesAtExit" in each)]
        return [program("kafka", "java"), *SMALL_JVM, *QUIET_LOG, *options, "-cp", path, main, *words]


def _cluster_id() -> str:
    """Return a new Kafka cluster id."""
    # No dash, because the tool would read an id with a leading dash as an option.
    text = urlsafe_b64encode(bytes.fromhex(random_id().replace("-", ""))).decode()
    return text.rstrip("=").replace("-", "_")


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - a program that is named in this package
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


SAFE: Final = (
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--save",
    "",
    "--maxmemory-policy",
    "noeviction",
)
"""Settings with which a server does not lose acknowledged charges."""


@dataclass(slots=True)
class RedisService:
    """A Redis server. Its data is in `folder`, and survives `kill` and `start`.

    Its port is chosen once.
    """

    folder: Path
    ends_with_starter: bool = False
    daemon: Daemon = field(init=False)

    def __post_init__(self) -> None:
        self.daemon = Daemon("redis", self.folder, self.ends_with_starter)

    @property
    def url(self) -> str:
        """The URL for clients. Raises `ServiceError` before the first start."""
        return f"redis://{HOST}:{self._port()}/0"

    def start(self, *, within_s: float = 10.0) -> None:
        """Start it with its existing data, and return when it is ready.

        Raises `ServiceError` otherwise.
        """
        redis = program("redis", "redis-server", "valkey-server")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            port = self._port()
        except ServiceError:
            port = 0
        if not port or not is_free(port):
            port = free_port()
            self._note.write_text(json.dumps(port), encoding="utf-8")
        place = ("--port", str(port), "--bind", HOST, "--dir", str(self.folder))
        self.daemon.start([redis, *place, *SAFE], lambda _printed: _answers(port), within_s=within_s)

    def stop(self) -> bool:
        """Stop it with SIGTERM. Return whether it was running."""
        return self.daemon.stop()

    @property
    def _note(self) -> Path:
        return self.folder / "port.json"

    def _port(self) -> int:
        try:
            return int(json.loads(self._note.read_bytes()))
        except (OSError, ValueError, TypeError):
            raise ServiceError("redis", f"was never started in {self.folder}. Start it first.") from None


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False

"""A Kafka and a Redis on this machine: started in a folder of their own, found again, stopped by process id."""

import fcntl
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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from agentic_trading.clock import SystemClock
from agentic_trading.errors import TradingError
from agentic_trading.ids import random_id

HOST: Final = "127.0.0.1"
"""The only address that a service of ours listens on."""

LOOKS_EVERY_S: Final = 0.02
PORTS: Final = range(10240, 32768)
"""Below those that the system hands out: a server that was killed gets its port again, and no client that dials it
meanwhile is connected to itself."""


class ServiceError(TradingError):
    """A local service cannot be prepared, started or stopped: `service`, and `why` with what to do."""

    def __init__(self, service: str, why: str) -> None:
        self.service = service
        self.why = why
        super().__init__(f"{service}: {why}")


def free_port(taken: Sequence[int] = ()) -> int:
    """Return a port of loopback that is free and not among `taken`; raises `ServiceError` if there is none."""
    offset = os.getpid() * 7919 % len(PORTS)  # two processes begin to look at different places
    for port in chain(PORTS[offset:], PORTS[:offset]):
        if port not in taken and is_free(port):
            return port
    raise ServiceError(
        "services", f"no port between {PORTS.start} and {PORTS.stop - 1} is free; stop a server"
    )


def is_free(port: int) -> bool:
    """Whether a server may listen on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind((HOST, port))
            return True
    return False


def program(service: str, *names: str) -> str:
    """Return the path of the first program of these that is installed; raises `ServiceError` if none is."""
    for name in names:
        path = shutil.which(name)
        if path is not None:
            return path
    raise ServiceError(service, f"{' or '.join(names)} is not on PATH; install it")


@dataclass(slots=True)
class Daemon:
    """The program `name` in `folder`, where its log and its process id stand.

    It goes on when the process that started it ends, unless `ends_with_starter`: a killed test run leaves nothing.
    For use by one process at a time.
    """

    name: str
    folder: Path
    ends_with_starter: bool = False
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False, repr=False)

    @property
    def log(self) -> Path:
        """The file with what the program prints."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if it does not run, also if its id is another process's by now."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(self._note.read_bytes())
            pid, begun = int(noted["pid"]), noted["begun"]
            if _begun(pid) == begun:
                return pid
        return None

    def start(self, command: Sequence[str], is_ready: Callable[[str], bool], *, within_s: float) -> None:
        """Start `command`, and return when `is_ready` says so of what it has printed.

        Raises `ServiceError` with the end of its log if it ends before, or is not ready in time; it is then stopped.
        """
        if self.pid is not None:
            raise ServiceError(self.name, f"runs already, with process id {self.pid}; stop it first")
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
                self.name, f"did not start within {within_s:g} s; {self.log} ends with:\n{self.tail()}"
            )

    def stop(self, *, within_s: float = 30.0) -> bool:
        """End it in good order, after `within_s` by force; returns whether it ran. Harmless twice."""
        pid = self.pid
        if pid is None:
            return False
        self.send(signal.SIGCONT)  # a stopped process does not hear that it is to end
        self.send(signal.SIGTERM)
        if not _within(within_s, lambda: self.pid is None):
            self.kill()
        self._forget()
        return True

    def kill(self) -> None:
        """End it as a crash does. Harmless twice."""
        self.send(signal.SIGKILL)
        _within(5.0, lambda: self.pid is None)
        self._forget()

    def send(self, number: signal.Signals) -> None:
        """Send the process a signal; nothing if it does not run."""
        pid = self.pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def tail(self) -> str:
        """Return the end of what it printed."""
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
    """Return when a process began, as the system counts it; raises `OSError` if there is none, or only its remains.

    Where the system does not say it, a process that exists is as good as another.
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
    """Return whether `condition` holds before `seconds` are over."""
    clock = SystemClock()
    until = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > until:
            return False
        time.sleep(LOOKS_EVERY_S)
    return True


CACHE: Final = Path("~/.cache/agentic-trading/kafka")
"""Where the artifacts and the class-data archive are kept, for all servers of this user."""

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
    # internal topics of one partition: the first reader would wait until 50 logs are made
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "share.coordinator.state.topic.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    # no wait of 3 s for a second member, and sessions may be short
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 500,
    # a server that was killed may come back when its old session is over
    "broker.session.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 300,
    "log.cleaner.dedupe.buffer.size": 2097152,  # the default is more than the heap has
    "log.cleaner.io.buffer.size": 131072,
    "num.network.threads": 2,
    "num.io.threads": 2,
    "background.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
    "group.coordinator.threads": 1,
    "group.coordinator.background.threads": 1,
})


def kafka_version() -> str:
    """Return the version of Kafka that `pom.xml` names."""
    found = re.search(r"<kafka\.version>([^<]+)<", POM.read_text(encoding="utf-8"))
    if found is None:
        raise ServiceError("kafka", f"{POM} names no kafka.version; install the package again")
    return found[1]


def ensure_jars(cache: Path = CACHE) -> Path:
    """Return the folder with the server's artifacts; Maven is asked once, and then never again.

    Raises `ServiceError` where Maven is not installed or cannot get them.
    """
    home = cache.expanduser() / kafka_version()
    jars = home / "jars"
    with _locked(home / "jars.lock"):
        if jars.is_dir():
            return jars
        partial = home / "jars.partial"
        shutil.rmtree(partial, ignore_errors=True)
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        done = _run([program("kafka", "mvn"), "-B", "-q", "-C", "-f", str(POM), *goal])
        if done.returncode or not list(partial.glob("kafka_2.13-*.jar")):
            shutil.rmtree(partial, ignore_errors=True)
            raise ServiceError("kafka", f"Maven could not get its artifacts; it says:\n{done.stdout[-2000:]}")
        partial.rename(jars)
    return jars


def ensure_class_archive(jars: Path) -> list[str]:
    """Return the options of Java for an archive of the server's classes, which is made once, in about ten seconds.

    With it a server is ready in a second instead of three. Where it cannot be made there are no options.
    """
    java = Path(program("kafka", "java")).resolve()
    files = [
        (file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in [java, *sorted(jars.iterdir())]
    ]
    digest = hashlib.sha256(repr((str(jars), files)).encode()).hexdigest()[:16]
    archive = jars.parent / f"{digest}.jsa"
    with _locked(jars.parent / "archive.lock"):
        if not archive.exists():
            folder, partial = jars.parent / "training", archive.with_suffix(".partial")
            shutil.rmtree(folder, ignore_errors=True)
            training = KafkaService(
                folder, jars, (f"-XX:ArchiveClassesAtExit={partial}",), ends_with_starter=True
            )
            training.start(within_s=60.0)
            training.stop()  # the archive is written at the end
            shutil.rmtree(folder, ignore_errors=True)
            if not partial.exists():
                return []
            partial.rename(archive)
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


@dataclass(slots=True)
class KafkaService:
    """A server of one node whose data stand in `folder`, and survive `kill` and `start`.

    Its ports are chosen once. Any client of this machine may connect, and topics are not made by asking for them.
    `listeners` are further ones, each with its protocol (`SASL_SSL`), `users` those with a password for SCRAM-SHA-512,
    and `settings` go before ours.
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
        """Return a server that has what it needs: artifacts and class archive; raises `ServiceError`."""
        jars = ensure_jars()
        return cls(folder, jars, tuple(ensure_class_archive(jars)), ends_with_starter, **options)

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, `HOST:PORT`; raises `ServiceError` before the first start."""
        return self.address_of("PLAINTEXT")

    def address_of(self, listener: str) -> str:
        """Return the address of a listener, `HOST:PORT`; raises `ServiceError` before the first start."""
        found = re.search(rf"^listeners=.*\b{listener}://([^,\n]+)", self._read_properties(), re.MULTILINE)
        if found is None:
            raise ServiceError("kafka", f"was never started in {self.folder}")
        return found[1]

    def start(self, *, within_s: float = 60.0) -> None:
        """Start it on what it has, and return when it answers; raises `ServiceError` if it does not."""
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        self._write_properties(data)
        self._format(data)
        command = self._java("kafka.Kafka", str(self._properties))
        self.daemon.start(command, lambda printed: READY in printed, within_s=within_s)
        host, port = self.bootstrap_servers.split(":")
        socket.create_connection((host, int(port)), timeout=5.0).close()

    def stop(self) -> bool:
        """End it in good order; returns whether it ran."""
        return self.daemon.stop()

    def kill(self) -> None:
        """End it as a crash does."""
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
        """Write what a server wants to find in an empty folder.

        Kafka's own tool is a start of Java; what it writes of feature levels is the same for every cluster of a
        version, so it is kept from its first run.
        """
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
                "kafka", f"its storage cannot be formatted; the tool says:\n{done.stdout[-2000:]}"
            )
        made = data / known.name
        if made.exists() and not self.users:
            partial = known.with_suffix(f".{cluster}")
            shutil.copy(made, partial)
            partial.rename(known)

    def _java(self, main: str, *words: str) -> list[str]:
        path = ":".join(sorted(map(str, self.jars.glob("*.jar"))))  # the archive holds for one order only
        is_tool = main != "kafka.Kafka"
        options = [each for each in self.jvm_options if not (is_tool and "ArchiveClassesAtExit" in each)]
        return [program("kafka", "java"), *SMALL_JVM, *QUIET_LOG, *options, "-cp", path, main, *words]


def _cluster_id() -> str:
    """Return a new id, as Kafka spells it; without a dash, which in front of it would make it an option of the tool."""
    text = urlsafe_b64encode(bytes.fromhex(random_id().replace("-", ""))).decode()
    return text.rstrip("=").replace("-", "_")


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - a program that is named in this package
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Let one process of the machine at a time enter the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


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
"""What a server has to be set to, so that no charge is lost with it."""


@dataclass(slots=True)
class RedisService:
    """A server whose data stand in `folder`, and survive `kill` and `start`; its port is chosen once."""

    folder: Path
    ends_with_starter: bool = False
    daemon: Daemon = field(init=False)

    def __post_init__(self) -> None:
        self.daemon = Daemon("redis", self.folder, self.ends_with_starter)

    @property
    def url(self) -> str:
        """The address for clients; raises `ServiceError` before the first start."""
        return f"redis://{HOST}:{self._port()}/0"

    def start(self, *, within_s: float = 10.0) -> None:
        """Start it on what it has, and return when it answers; raises `ServiceError` if it does not."""
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
        """End it in good order; returns whether it ran."""
        return self.daemon.stop()

    @property
    def _note(self) -> Path:
        return self.folder / "port.json"

    def _port(self) -> int:
        try:
            return int(json.loads(self._note.read_bytes()))
        except (OSError, ValueError, TypeError):
            raise ServiceError("redis", f"was never started in {self.folder}") from None


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1.0) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False

"""The peers of `fleet.py`: DBOS on SQLite and on Postgres, and Restate, each with the steps that a durable call needs."""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final

from agentic_trading.services.local import HOST, Daemon, free_port, program
from benchmarks.peers.contender import Program, UnavailableError, environment, node_modules, versions
from benchmarks.peers.durable import ask_all

STARTS_WITHIN_S = 30.0
NOBODY = 65534
"""Postgres refuses to be run by root."""


@dataclass(frozen=True)
class Peer:
    """A peer that runs: `ask` takes the numbers of calls and how many at once, and answers as `ask_all` does."""

    worker: int
    servers: tuple[int, ...]
    ask: Callable[[range, int], tuple[list[float], int]]


@contextmanager
def dbos_on_sqlite(folder: Path) -> Generator[Peer]:
    """Run DBOS on a file of its own."""
    with _dbos(f"sqlite:///{folder / 'dbos.sqlite'}") as process:
        yield Peer(process.pid, (), partial(_ask_dbos, process))


@contextmanager
def dbos_on_postgres(_folder: Path) -> Generator[Peer]:
    """Run DBOS on a Postgres as it comes, which syncs each commit."""
    with _postgres() as (url, server), _dbos(url) as process:
        yield Peer(process.pid, (server,), partial(_ask_dbos, process))


def _dbos(url: str) -> Program:
    return Program([environment("dbos"), "-m", "benchmarks.peers.dbos.fleet", url])


def _ask_dbos(process: Program, numbers: range, at_once: int) -> tuple[list[float], int]:
    took, wrong = json.loads(process.ask(f"{numbers.start} {numbers.stop} {at_once}"))
    return took, wrong


@contextmanager
def _postgres() -> Generator[tuple[str, int]]:
    """Give the address of an empty database, and the process of its server."""
    initdb, postgres, setpriv = (program("Postgres", name) for name in ("initdb", "postgres", "setpriv"))
    is_root = os.geteuid() == 0
    who = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if is_root else []
    prefix = [setpriv, *who, "--pdeathsig=KILL"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if is_root:
            os.chown(folder, NOBODY, NOBODY)
        data, port = str(folder / "data"), free_port()
        make = [*prefix, initdb, "-D", data, "-U", "bench", "--auth=trust"]
        subprocess.run(make, check=True, capture_output=True, cwd=folder)  # noqa: S603 - Postgres' own
        server = Daemon("postgres", folder)
        serve = [*prefix, postgres, "-D", data, "-p", str(port), "-h", HOST, "-k", ""]
        server.start(serve, lambda printed: "ready to accept" in printed, within_s=STARTS_WITHIN_S)
        try:
            yield f"postgresql://bench@{HOST}:{port}/dbos", server.pid or 0
        finally:
            server.stop()


@contextmanager
def restate(folder: Path) -> Generator[Peer]:
    """Run a Restate server as it comes, which syncs its log, and the process that serves its handler."""
    modules = node_modules("restate_server")
    binary = next(modules.glob("@restatedev/restate-server-*/bin/restate-server"), None)
    if binary is None:
        raise UnavailableError("there is no server for this machine")
    ports = [free_port()]
    while len(ports) < 4:
        ports.append(free_port(ports))
    inner, ingress, admin, service = ports
    config = folder / "restate.toml"
    config.write_text(
        f'disable-telemetry = true\nbind-address = "{HOST}:{inner}"\n'
        f'[ingress]\nbind-address = "{HOST}:{ingress}"\n[admin]\nbind-address = "{HOST}:{admin}"\n',
        encoding="utf-8",
    )
    server = Daemon("restate", folder / "restate", ends_with_starter=True)
    command = [
        str(binary),
        "--config-file",
        str(config),
        "--base-dir",
        str(folder / "restate"),
        "--listen-mode",
        "tcp",
    ]
    server.start(
        command, lambda _: answer(admin, "GET", "/health")[0] == HTTPStatus.OK, within_s=STARTS_WITHIN_S
    )
    try:
        with Program([
            environment("restate"),
            "-m",
            "benchmarks.peers.restate.peer",
            str(service),
        ]) as process:
            _register(admin, service)
            yield Peer(process.pid, (server.pid or 0,), partial(_ask_restate, ingress))
    finally:
        server.kill()


def _register(admin: int, service: int) -> None:
    """Tell the server where the handler is, once it serves."""
    until = time.monotonic() + STARTS_WITHIN_S
    where = json.dumps({"uri": f"http://{HOST}:{service}"})
    while answer(admin, "POST", "/deployments", where)[0] != HTTPStatus.CREATED:
        if time.monotonic() > until:
            raise UnavailableError(f"its handler does not serve within {STARTS_WITHIN_S:g} s")
        time.sleep(0.1)


def answer(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    """Return the status and the body of an answer; the status is 0 where nothing answers."""
    connection = HTTPConnection(HOST, port, timeout=5.0)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, HTTPException):
        return 0, b""
    finally:
        connection.close()


def _ask_restate(ingress: int, numbers: range, at_once: int) -> tuple[list[float], int]:
    """Ask through the server; each call has its key, under which the server tells its answer a second time."""
    own = threading.local()

    def ask(number: int) -> str:
        if not hasattr(own, "connection"):
            own.connection = HTTPConnection(HOST, ingress, timeout=STARTS_WITHIN_S)
        head = {"content-type": "application/json", "idempotency-key": f"call-{number}"}
        own.connection.request("POST", "/decisions/decide", '"Advise."', head)
        return str(json.loads(own.connection.getresponse().read()))

    return ask_all(ask, numbers, at_once)


PEERS: Final = {
    f"DBOS on SQLite ({versions('dbos')})": dbos_on_sqlite,
    f"DBOS on Postgres ({versions('dbos')})": dbos_on_postgres,
    f"Restate ({versions('restate_server')})": restate,
}
"""Each is entered with an empty folder; raises `UnavailableError` and `ServiceError` where it cannot run here."""

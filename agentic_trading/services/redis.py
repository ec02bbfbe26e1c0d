"""A Redis or Valkey server on loopback that forgets nothing which it has acknowledged, as the ledger asks for it."""

import json
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agentic_trading.services.daemon import HOST, Daemon, ServiceError, free_port, is_free, program

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

"""Where a row of `http_money.py` takes place: the vendor, the server as a process, its ledger, and what the command line shows of it."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentic_trading.services.local import HOST, Daemon, free_port
from benchmarks.peers.contender import ROOT
from benchmarks.peers.load import BUDGET_NUSD, DOLLARS, MODEL, NANO, NUSD_PER_TOKEN
from tests.redis_server import RealServer, own_server, servers

PROGRAM = Path(sys.executable).parent / "agentic-trading"
TENANT = "acme"
STARTS_WITHIN_S = 60.0
CONCURRENCY = 64
"""Calls that the server sends at once, so that each caller has one in flight."""


@dataclass
class Place:
    """The folder, the address of the vendor, the server and its Redis. Without one, the ledger is in the folder of the log."""

    folder: Path
    vendor: str
    redis: RealServer | None
    secret: str = ""
    port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.server = Daemon("serve", self.folder, ends_with_starter=True)

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://{HOST}:{self.port}"

    @property
    def store(self) -> Path:
        """The folder of the server's log."""
        return self.folder / "log"

    def start(self) -> None:
        """Start the server, and return when it serves."""
        command = [str(PROGRAM), "serve", "--http", f"{HOST}:{self.port}", "--store", str(self.store)]
        self.server.start(command, lambda said: "serving " in said, within_s=STARTS_WITHIN_S)

    def ask_vendor(self, path: str) -> Any:
        """Return a page of the vendor. It blocks."""
        with urllib.request.urlopen(f"{self.vendor}/{path}", timeout=30) as page:  # noqa: S310 - our own stub
            return json.load(page)

    def shown(self, *words: str) -> Any:
        """Return what a command prints as JSON. It blocks."""
        done = subprocess.run(  # noqa: S603 - our own command
            [str(PROGRAM), *words, "--json"], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def balance(self) -> tuple[int, int, int]:
        """Return what `budget show` has as spent, held and in doubt, in nano-dollars. It blocks."""
        where = ["--ledger", self.redis.url] if self.redis is not None else ["--store", str(self.store)]
        page = self.shown("budget", "show", "--tenant", TENANT, *where)
        (total,) = [one for one in page["counters"] if one["scope"] == "tenant" and one["window"] == "none"]
        return total["spent"][0], total["held"][0], total["in_doubt"][0]

    def spend(self) -> dict[str, int]:
        """Return the total that `spend` shows. It blocks."""
        found: dict[str, int] = self.shown("spend", "--by", "", "--store", str(self.store))["total"]
        return found


@contextmanager
def placed(
    folder: Path, *, answers: tuple[float, float, float], attempt_timeout_s: float, with_redis: bool
) -> Generator[Place]:
    """Run a vendor, a Redis if it is wanted, and the server for as long as the block lasts."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.http_money_vendor", *map(str, answers)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as vendor:  # noqa: S603 - ours
        try:
            assert vendor.stdout is not None
            address = f"http://{HOST}:{int(vendor.stdout.readline())}"
            if with_redis:
                with own_server("redis" if "redis" in servers() else "valkey") as redis:
                    yield from _served(Place(folder, address, redis), attempt_timeout_s)
            else:
                yield from _served(Place(folder, address, None), attempt_timeout_s)
        finally:
            vendor.kill()


def _served(place: Place, attempt_timeout_s: float) -> Generator[Place]:
    _configure(place, attempt_timeout_s)
    place.start()
    try:
        yield place
    finally:
        place.server.kill()


def _configure(place: Place, attempt_timeout_s: float) -> None:
    ledger = "" if place.redis is None else f'[ledger]\nurl = "{place.redis.url}"\n'
    (place.folder / "secrets").mkdir()
    (place.folder / "secrets" / "openai_api_key").write_text("sk-upstream")
    (place.folder / "agentic-trading.toml").write_text(
        f"""
secrets_folder = "secrets"
concurrency = {CONCURRENCY}
{ledger}
[tenants.{TENANT}]
budget_usd = "{BUDGET_NUSD // NANO}"
[providers.openai]
base_url = "{place.vendor}/v1"
[[providers.openai.models]]
model = "{MODEL}"
context_tokens = 200000
max_output_tokens = {DOLLARS.cap}
price = {{ input = 0, output = {NUSD_PER_TOKEN} }}
source = "benchmarks/peers/load.py"
checked_on = 2026-11-28
""",
        encoding="utf-8",
    )
    create = [str(PROGRAM), "api-keys", "create", "callers", "--tenant", TENANT, "--agent", "caller"]
    rights = ["--max-output-tokens", str(DOLLARS.cap), "--attempt-timeout-s", str(attempt_timeout_s)]
    named = ["--model", f"{MODEL}=openai/{MODEL}"]
    done = subprocess.run(  # noqa: S603 - our own command
        [*create, *rights, *named], cwd=place.folder, check=True, capture_output=True, text=True
    )
    place.secret = done.stdout.split()[-1]

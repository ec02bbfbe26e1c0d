"""A session's folder: one log, and for each of its runs a manifest, a decision log and the bars that were fed."""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import IO, Literal, Self

import orjson
from pydantic import BaseModel, Field, JsonValue, ValidationError, model_validator

from agentic_trading.client.call_log import EarlierCalls
from agentic_trading.files import read_file
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import BarChecksums
from agentic_trading.llm.models import Capability
from agentic_trading.operate.choices import PROVIDERS, listed
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import FallbackConfig, RunMode
from agentic_trading.platform.errors import OptionError

MADE_BY_RUN = "a folder that `run --out` made"


class DataSource(BaseModel, frozen=True):
    """One feed of a run, as it was named."""

    name: str
    symbol: str


class AskedProvider(BaseModel, frozen=True):
    """A provider that could be asked: its adapter, and its address without the host, empty for the adapter's own."""

    adapter: str
    base_url: str = ""


class BusPlace(BaseModel, frozen=True):
    """Where the calls of a run are made: by the workers of a bus, and on which ledger; all is empty for the run's own process.

    No address has a name or a password in it.
    """

    url: str = ""
    namespace: str = ""
    ledger: str = ""


class RunManifest(BaseModel, frozen=True):
    """What a run was asked to be and how far it came: what a replay needs with the log and the bars.

    `answers` is the kind of provider: the rules, a provider's name, the models of the configuration, or a recording of what
    `provider` answered. `model` is empty where each workflow had its own; `base_url` is a server's address without its
    host, empty for the provider's own. `models` are those that the configuration has for each workflow, `fallback` what
    was called when one failed, `providers` the adapters and addresses, and `capabilities` the rows of all models that
    could be asked: a replay needs no other table.
    `plan` is how a plan was searched for, as the planner wrote it; None without a search.
    `max_calls` counts attempts, None where they were not limited. `bus` says where workers in other processes made its calls.
    `first_seq` is the number of
    the log line before its first one. `starts` counts the processes that wrote it: the log has a `run.started` of each,
    and a `run.ended` of the last one unless that was killed; 0 stands for a run of a release that wrote neither. `digest`
    is that of the decision log, None while the run has not ended.
    """

    version: Literal[2]
    package: str
    session_id: str
    run_number: int
    tenant: str = DEFAULT_TENANT
    mode: RunMode
    answers: str = "rules"
    provider: LLMProvider
    model: str
    base_url: str = ""
    models: Mapping[EnvelopeWorkflow, str] = Field(default_factory=dict)
    fallback: Mapping[EnvelopeWorkflow, FallbackConfig] = Field(default_factory=dict)
    providers: Mapping[str, AskedProvider] = Field(default_factory=dict)
    capabilities: tuple[Capability, ...] = ()
    config_sha256: str = ""
    data: tuple[DataSource, ...]
    bars: int | None
    budget_usd: Decimal
    max_calls: int | None = None
    inject: str
    seed: str
    workers: int
    bus: BusPlace = BusPlace()
    plan: Mapping[str, JsonValue] | None = None
    first_seq: int
    starts: int = 0
    started_at: datetime
    bars_done: int = 0
    interrupted: bool = False
    digest: str | None = None

    @model_validator(mode="after")
    def _answers_is_a_provider(self) -> Self:
        known = (*PROVIDERS, *self.providers)
        if self.answers not in known:
            raise ValueError(f"answers: one of {listed(known)}")
        return self

    @property
    def has_ended(self) -> bool:
        """Whether the run came to the end of its bars: it was neither killed nor interrupted."""
        return self.digest is not None and not self.interrupted


class SessionFolder:
    """Where the files of a session lie. Run 1 has the plain names, run 2 and later their number in them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        """The log of all runs."""
        return self.path / "interactions.jsonl"

    def manifest(self, run: int) -> Path:
        """What run `run` was asked to be."""
        return self.path / f"run{_number(run)}.json"

    def decisions(self, run: int) -> Path:
        """The decision log of a run."""
        return self.path / f"decisions{_number(run)}.jsonl"

    def bars(self, run: int, symbol: str) -> Path:
        """The bars that a run was fed of one symbol."""
        return self.path / f"bars{_number(run)}-{symbol}.csv"

    def last_run(self) -> int:
        """Return the number of the newest run, 0 if there is none."""
        run = 0
        while self.manifest(run + 1).exists():
            run += 1
        return run

    def prepare(self) -> None:
        """Make the folder; raises `StoreError` if it cannot be made or written to."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_bytes(b"")
            probe.unlink()

    def read_manifest(self, run: int | None = None, *, option: str = "the session") -> RunManifest:
        """Return the manifest of a run, by default the newest; `option` is what named the folder.

        Raises `OptionError` if it is not there or not one.
        """
        try:
            last = self.last_run()
        except OSError as e:  # a name that no file can have, or a folder that may not be read
            raise OptionError(option, f"{self.path} ({e.strerror})", MADE_BY_RUN) from e
        if last == 0:
            lacks = "where no run is" if self.path.is_dir() else "where no folder is"
            raise OptionError(option, f"{self.path}, {lacks}", MADE_BY_RUN)
        number = run or last
        if number > last:
            raise OptionError(option, f"{self.path}, run {number}", f"a run from 1 to {last}")
        try:
            return RunManifest.model_validate_json(read_file(self.manifest(number)))
        except (ValidationError, OSError) as e:
            raise OptionError(
                str(self.manifest(number)), "not the manifest of a run", "a file that `run` wrote"
            ) from e

    def last_seq(self, manifest: RunManifest) -> int | None:
        """Return the number of the last log line of a run: that before the next run's first; None for the newest."""
        following = manifest.run_number + 1
        return self.read_manifest(following).first_seq if self.manifest(following).exists() else None

    def write_manifest(self, manifest: RunManifest) -> None:
        """Write or replace the manifest of a run, whole or not at all; raises `StoreError` if it cannot be written."""
        fields = orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        replace_file(self.manifest(manifest.run_number), fields + b"\n")


def _number(run: int) -> str:
    return "" if run == 1 else f"-{run}"


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    with writing(path), replacing(path) as fresh:
        fresh.write(content)


@contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """Give the file that takes the place of `path` when the block ends."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        yield file
    fresh.replace(path)


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Raise `StoreError` where the block cannot write a file."""
    try:
        yield
    except OSError as e:
        raise StoreError(path, f"cannot be written ({e.strerror}); choose another --out") from e


ROWS_A_MARK = 256
"""From one mark in `BarChecksums` to the next."""


class BarsDigest:
    """The SHA-256 of a file of bars, line by line: the header first, then the rows."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._lines = 0
        self._marks: list[str] = []

    def add(self, line: bytes) -> None:
        """Go on with the next line, its newline with it."""
        self._hash.update(line)
        if self._lines and self._lines % ROWS_A_MARK == 0:
            self._marks.append(self._hash.hexdigest()[:16])
        self._lines += 1

    def of(self, symbol: str) -> BarChecksums:
        """Return what was added so far, as the bars of `symbol`."""
        rows = max(0, self._lines - 1)
        return BarChecksums(symbol=symbol, rows=rows, sha256=self._hash.hexdigest(), marks=tuple(self._marks))


async def read_elsewhere(logs: Sequence[Path], asked: EarlierCalls) -> None:
    """Look in the logs of workers, or an archive, for answers that a run over a bus lacks; raises `StoreError` for no log."""
    for path in logs:
        log = SessionFolder(path).log if await asyncio.to_thread(path.is_dir) else path
        async with aclosing(port_adapters.records_of(log)) as records, aclosing(records.scan()) as entries:
            async for entry in entries:
                asked.read_elsewhere(entry.record)
    asked.are_all_read = bool(logs)

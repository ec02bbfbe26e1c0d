"""The folder of a session: one log, and per run a manifest, a decision log and the bars."""

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
from agentic_trading.files import read_file, replace_file
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import BarChecksums
from agentic_trading.llm.models import Capability
from agentic_trading.llm.store import LOG_NAME
from agentic_trading.operate.choices import PROVIDERS, listed
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import FallbackConfig, RunMode
from agentic_trading.platform.errors import OptionError
from agentic_trading.trading_limits import Economics, LossLimits

MADE_BY_RUN = "a folder created by `run --out`"


class DataSource(BaseModel, frozen=True):
    """One feed of a run. Runs before the version that traded other lengths have bars of five minutes."""

    name: str
    symbol: str
    timeframe: str = "5m"


class AskedProvider(BaseModel, frozen=True):
    """A provider that could be called: its adapter, and its URL without the host.

    Empty for the default URL.
    """

    adapter: str
    base_url: str = ""


class BusPlace(BaseModel, frozen=True):
    """The bus and ledger of a run's workers, without user names and passwords.

    Empty for the run's own process.
    """

    url: str = ""
    namespace: str = ""
    ledger: str = ""


class AgentOnRecord(BaseModel, frozen=True):
    """The agent of a run, if it was not a shipped one. It is data: nothing is imported from it.

    Attributes:
        path: The import path that was given.
        config: The configuration.
        source_sha256: The hash of the source of its module. Empty if the module had no file.

    """

    path: str
    config: Mapping[str, JsonValue] = Field(default_factory=dict)
    source_sha256: str = ""


class RunManifest(BaseModel, frozen=True):
    """The inputs and progress of a run. A replay needs it with the log and the bars.

    Attributes:
        version: The version of this format: 3 with an agent of the user, limits or a calendar, else 2. Earlier
            releases refuse 3, because they would replay the run without them.
        package: The version of the package.
        session_id: The id of the session.
        run_number: The number of the run in its session.
        tenant: The tenant.
        mode: The mode.
        answers: The kind of provider: `rules`, a provider's name, `config`, or `recorded`.
        provider: The provider, or that of the recording.
        model: The model. Empty if each workflow had its own.
        base_url: The URL of the server without its host. Empty for the default URL.
        models: The configured model of each workflow.
        fallback: The fallback of each workflow.
        providers: Adapters and URLs of the providers that could be called.
        capabilities: Rows of all models that could be called, so that a replay needs no table.
        config_sha256: The hash of the configuration.
        data: The feeds.
        bars: The number of bars to read. None for all.
        budget_usd: The budget.
        max_calls: The most attempts. None for no limit.
        inject: The injected faults.
        seed: The seed.
        workers: The number of workers.
        bus: The bus whose workers made the calls.
        plan: The search for a plan, as written by the planner. None without a search.
        agent: The agent. None for a shipped one.
        risk, economics: The limits of the configuration: on losses, and on the cost of questions.
        inference_rate: The price of one US dollar, such as `USDUSDT=0.9995`. Empty for 1.
        zone: The time zone of the days of limits.
        calendar: The name of the exchange calendar. Empty for a market that never closes.
        silent_after: The limit on the missing bars of a feed. 0 for none.
        first_seq: The number of the log line before the first one of the run.
        starts: The number of processes that wrote the run. The log has a `run.started` of each, and a
            `run.ended` of the last one unless it was killed. 0 for runs of a release that wrote neither.
        started_at: The time of the first start.
        bars_done: The number of processed bars.
        interrupted: Whether the run was interrupted.
        digest: The digest of the decision log. None until the run ends.

    """

    version: Literal[2, 3]
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
    agent: AgentOnRecord | None = None
    risk: LossLimits = LossLimits()
    economics: Economics = Economics()
    inference_rate: str = ""
    zone: str = "UTC"
    calendar: str = ""
    silent_after: int = 0
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
        """Whether the run processed all bars: it was neither killed nor interrupted."""
        return self.digest is not None and not self.interrupted


class SessionFolder:
    """The files of a session. Names of run 2 and later contain the number of the run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def log(self) -> Path:
        """The log of all runs."""
        return self.path / LOG_NAME

    def manifest(self, run: int) -> Path:
        """The manifest of a run."""
        return self.path / f"run{_number(run)}.json"

    def decisions(self, run: int) -> Path:
        """The decision log of a run."""
        return self.path / f"decisions{_number(run)}.jsonl"

    def bars(self, run: int, symbol: str) -> Path:
        """The bars of one symbol that a run received."""
        return self.path / f"bars{_number(run)}-{symbol}.csv"

    def calendar(self, run: int) -> Path:
        """The hours of the exchange calendar of a run."""
        return self.path / f"calendar{_number(run)}.csv"

    def page(self, run: int) -> Path:
        """The page that `report` writes of a run."""
        return self.path / f"report{_number(run)}.html"

    def last_run(self) -> int:
        """Return the number of the newest run. 0 if there is none."""
        run = 0
        while self.manifest(run + 1).exists():
            run += 1
        return run

    def prepare(self) -> None:
        """Create the folder. Raises `StoreError` if it cannot be created or written to."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_bytes(b"")
            probe.unlink()

    def read_manifest(self, run: int | None = None, *, option: str = "the session") -> RunManifest:
        """Return the manifest of a run, by default the newest.

        Args:
            run: The number of the run.
            option: The option that named the folder, for messages.

        Raises:
            OptionError: If the manifest is missing or invalid.

        """
        try:
            last = self.last_run()
        except OSError as e:  # an invalid file name, or a folder without permission
            raise OptionError(option, f"{self.path} ({e.strerror})", MADE_BY_RUN) from e
        if last == 0:
            lacks = "which contains no run" if self.path.is_dir() else "which is not a folder"
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
        """Return the number of the last log line of a run. None for the newest run."""
        following = manifest.run_number + 1
        return self.read_manifest(following).first_seq if self.manifest(following).exists() else None

    def write_manifest(self, manifest: RunManifest) -> None:
        """Write the manifest of a run atomically. Raises `StoreError` if it cannot be written."""
        fields = orjson.dumps(manifest.model_dump(mode="json"), option=orjson.OPT_INDENT_2)
        path = self.manifest(manifest.run_number)
        with writing(path):
            replace_file(path, fields + b"\n", sync=False)


def _number(run: int) -> str:
    return "" if run == 1 else f"-{run}"


@contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """Yield a file that replaces `path` when the block ends."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("wb") as file:
        yield file
    fresh.replace(path)


@contextmanager
def writing(path: Path, *, option: str = "--out") -> Generator[None]:
    """Raise `StoreError` if the block cannot write a file. `option` is the one that named it."""
    try:
        yield
    except OSError as e:
        raise StoreError(path, f"cannot be written ({e.strerror}). Choose another {option}") from e


ROWS_A_MARK = 256
"""Rows between two marks in `BarChecksums`."""


class BarsDigest:
    """The SHA-256 of a file of bars, computed line by line: the header, then the rows."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._lines = 0
        self._marks: list[str] = []

    def add(self, line: bytes) -> None:
        """Add the next line, with its newline."""
        self._hash.update(line)
        if self._lines and self._lines % ROWS_A_MARK == 0:
            self._marks.append(self._hash.hexdigest()[:16])
        self._lines += 1

    def of(self, symbol: str) -> BarChecksums:
        """Return the checksums of the added lines, as bars of `symbol`."""
        rows = max(0, self._lines - 1)
        return BarChecksums(symbol=symbol, rows=rows, sha256=self._hash.hexdigest(), marks=tuple(self._marks))


async def read_elsewhere(logs: Sequence[Path], asked: EarlierCalls) -> None:
    """Read answers that a run over a bus lacks from logs of workers or an archive. Raises `StoreError`."""
    for path in logs:
        log = SessionFolder(path).log if await asyncio.to_thread(path.is_dir) else path
        async with aclosing(port_adapters.records_of(log)) as records, aclosing(records.scan()) as entries:
            async for entry in entries:
                asked.read_elsewhere(entry.record)
    asked.are_all_read = bool(logs)

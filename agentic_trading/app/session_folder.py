"""A session's folder: one log, and for each of its runs a manifest, a decision log and the bars that were fed."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Literal, Self
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import orjson
from pydantic import BaseModel, Field, ValidationError, model_validator

from agentic_trading.app.options import PROVIDERS, OptionError, RunMode, listed
from agentic_trading.desk.planning.params import PlanTerms
from agentic_trading.files import read_file
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.models import Capability
from agentic_trading.platform.config import FallbackConfig

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
    could be asked: a replay needs no other table. Manifests of version 1 have none of the four.
    `plan` is how a plan was searched for, None where none was, and in older manifests: then on the default terms.
    `max_calls` counts attempts, None where they were not limited. `bus` says where workers in other processes made its calls.
    `first_seq` is the number of
    the log line before its first one. `starts` counts the processes that wrote it: the log has a `run.started` of each,
    and a `run.ended` of the last one unless that was killed; 0 stands for a run of a release that wrote neither. `digest`
    is that of the decision log, None while the run has not ended.
    """

    version: Literal[1, 2] = 1
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
    plan: PlanTerms | None = None
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
    def asked(self) -> Sequence[str]:
        """The models that could be asked, as `PROVIDER/MODEL`, as far as the manifest names them."""
        others = [name for row in self.fallback.values() for name in row.to]
        own = [f"{self.provider}/{self.model}"] if self.model and not self.models else []
        return list(dict.fromkeys([*own, *self.models.values(), *others]))

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


SHIPPED = Path(str(files("agentic_trading.desk") / "recordings"))

_PACKED_AT = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a package of a session: equal sessions give equal packages."""


def shipped_names(shipped: Path = SHIPPED) -> list[str]:
    """Return the names that `--from` takes in place of a folder, sorted."""
    return sorted(path.stem for path in shipped.glob("*.zip"))


@contextmanager
def session_folder(path: Path, *, shipped: Path = SHIPPED) -> Iterator[Path]:
    """Give the folder of a session: `path`, if it is one, or else that of the shipped recording of this name.

    A shipped one is unpacked for as long as the block lasts. Raises `OptionError` where neither is there. Reads and
    writes files, so enter it off the loop.
    """
    names = shipped_names(shipped)
    if _is_folder(path) or str(path) not in names:
        if not _is_folder(path) and names:
            allowed = f"{MADE_BY_RUN}, or a shipped recording: {', '.join(names)}"
            raise OptionError("--from", f"{path}, where no folder is", allowed)
        yield path
        return
    with TemporaryDirectory(prefix="agentic-trading-recording-") as unpacked:
        with ZipFile(shipped / f"{path}.zip") as package:
            package.extractall(unpacked)
        yield Path(unpacked)


def pack(session: Path, package: Path) -> None:
    """Write the files of a session into one package, as `session_folder` reads it; equal sessions give equal bytes."""
    with ZipFile(package, "w") as target:
        for path in sorted(session.iterdir()):
            if path.suffix in {".json", ".jsonl", ".csv"}:
                member = ZipInfo(path.name, date_time=_PACKED_AT)
                target.writestr(member, path.read_bytes(), compress_type=ZIP_DEFLATED, compresslevel=9)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that no folder can have
        return False

"""Replay a session from its own log, without a network, and report the differences."""

import asyncio
import io
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple, Self

from pydantic import BaseModel, Field

from agentic_trading.client.gateway import AskingGateway, GatewayReply
from agentic_trading.client.outcome import StructuredOutcome
from agentic_trading.desk.execution.silent_feeds import SilenceLimit
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.agents import OwnAgent, agent_of_run, shipped_agent, source_changes
from agentic_trading.desk.session.calendars import kept_calendar
from agentic_trading.desk.session.entry_resumes import RecordedResumes
from agentic_trading.desk.session.families import family_changes, refuse_other_family
from agentic_trading.desk.session.feeds import bar_grid
from agentic_trading.desk.session.options import plan_on_record
from agentic_trading.desk.session.run_setup import (
    recorded_attempts,
    recorded_entries,
    replayed_run,
    tables_with,
)
from agentic_trading.desk.session.session_run import (
    SessionObserver,
    SessionResult,
    SessionSetup,
    play_session,
)
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision, StoreError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.operate.log_check import check_file
from agentic_trading.operate.session_folder import DataSource, RunManifest, SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import PlatformConfig, TenantConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.platform.port_adapters import budget_ledger
from agentic_trading.platform.tables import load_tables
from agentic_trading.replay import Difference, difference_at, no_network, request_changes
from agentic_trading.structured.pydantic_schema import SemanticCheck

Edit = Callable[[LLMEnvelope], LLMEnvelope]
"""Changes an envelope before its call, to see the effect of a change."""


class ReplayReport(BaseModel, frozen=True):
    """The result of a replay.

    Attributes:
        identical: Whether the decision logs are equal, byte for byte.
        answered: The number of calls that the recording has answered.
        misses: The number of attempts that are not in the recording.
        unused: The number of recorded attempts that were not used.
        first_difference: The first difference between the decision logs, or None.
        request_changes: The changes of the first request without an answer, compared with the recorded
            request.
        warnings: The damages and the limits of the log.

    """

    session_id: str
    run_number: int
    bars: int
    workers: int
    recorded_digest: str
    digest: str
    identical: bool
    answered: int
    misses: int
    unused: int
    first_difference: str | None = None
    request_changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = Field(default=(), exclude=True)


class NoDigestError(TradingError):
    """A run that was killed before its end, so that it has no digest to compare with."""

    def __init__(self, session: Path, run: int) -> None:
        self.session = session
        self.run = run
        super().__init__(
            f"{session}: run {run} did not end. Finish it with `run --resume --out {session}`, "
            "or replay its intact lines with --allow-incomplete"
        )


async def replay(
    session: Path,
    *,
    run: int | None = None,
    workers: int = 4,
    edit: Edit | None = None,
    allow_incomplete: bool = False,
    agent: OwnAgent | None = None,
    family: str = "",
) -> ReplayReport:
    """Replay a run of a session with its recorded answers, and compare the decision logs.

    No file is written, and the network is blocked. The replay ends after the first time slice with a missing
    answer. `edit` changes each envelope before its call. With `allow_incomplete`, a killed run and a broken
    or truncated log are accepted: the lines before the first broken line are compared with the decision log.
    The agent of the user and its family must be given, because a folder never chooses code. Raises `OptionError`
    if the folder has no such run, or another agent or family made it, `NoDigestError` if the run was killed,
    and `StoreError` if files are missing or broken, or the bars are not those of the run.
    """
    folder = SessionFolder(session)
    manifest = await asyncio.to_thread(folder.read_manifest, run)
    own = agent_of_run(agent, manifest)
    refuse_other_family(family, manifest)
    intact_lines, warnings = await _intact_lines(folder, manifest, allow_incomplete=allow_incomplete)
    recorded, asked, resumes = await _recording(folder, manifest, intact_lines)
    seen = ReplayObservations(asked)
    compared = DecisionComparison(folder.decisions(manifest.run_number))
    await asyncio.to_thread(compared.open)
    recorded_digest = manifest.digest or compared.recorded_digest
    played = SessionResult()

    async def after_slice(_moment: TimeSlice, new: Sequence[bytes]) -> None:
        if new:
            await asyncio.to_thread(compared.add, new)
        # Not at the miss itself, because the first miss is chosen from all misses of the time slice.
        if seen.missed:
            raise _EndedByMissError

    with no_network(), closing(compared):
        with suppress(_EndedByMissError):
            setup = await _setup(folder, manifest, recorded, resumes, workers, own)
            observer = SessionObserver(after_slice, wrap=lambda gateway: ObservedGateway(gateway, seen, edit))
            await play_session(setup, played, observer)
        difference = await asyncio.to_thread(compared.end)
    return ReplayReport(
        session_id=manifest.session_id,
        run_number=manifest.run_number,
        bars=played.bars_done,
        workers=workers,
        recorded_digest=recorded_digest,
        digest=compared.digest,
        identical=compared.digest == recorded_digest and difference is None,
        answered=seen.answered,
        misses=len(recorded.misses),
        unused=len(recorded.unused),
        first_difference=None if difference is None else str(difference),
        request_changes=await _changes(folder, manifest, seen.first_missed, intact_lines),
        warnings=(*warnings, *source_changes(own, manifest), *family_changes(manifest)),
    )


async def _recording(
    folder: SessionFolder, manifest: RunManifest, intact_lines: int | None
) -> tuple[port_adapters.Recording, AbstractSet["AskedRequest"], RecordedResumes]:
    """Return the recorded answers of a run, its requests, and the operators' resumes of its entries."""
    recorded, asked, resumes = port_adapters.recording(), set[AskedRequest](), RecordedResumes()
    async for entry in recorded_entries(folder, manifest, intact_lines=intact_lines):
        resumes.read(entry.record)
        if isinstance(entry.record, LLMInteraction):
            recorded.add(entry.record)
            asked.add(AskedRequest.of(entry.record.envelope))
    return recorded, asked, resumes


async def _intact_lines(
    folder: SessionFolder, manifest: RunManifest, *, allow_incomplete: bool
) -> tuple[int | None, tuple[str, ...]]:
    """Return the number of intact lines of a log, or None for all, and warnings about it.

    Raises `NoDigestError` for a killed run, and `StoreError` for a damaged log, unless `allow_incomplete` is
    set.
    """
    if manifest.digest is None and not allow_incomplete:
        raise NoDigestError(folder.path, manifest.run_number)
    log = await check_file(folder.log)
    findings = log.of_run((manifest.session_id, manifest.run_number))
    if findings and not allow_incomplete:
        raise findings[0].error(". With `--allow-incomplete`, the intact lines are replayed")
    return log.lines if findings else None, (
        *map(str, findings),
        *(f"{folder.log}: {note}" for note in log.notes),
    )


class _EndedByMissError(TradingError):
    """Ends a replay that has no answer for a call."""


class AskedRequest(NamedTuple):
    """The identity of a call without its occurrence number."""

    tenant: str
    agent: str
    step: str
    request_hash: str

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> Self:
        """Return the identity of an envelope."""
        return cls(envelope.tenant_id, envelope.agent_id, envelope.step, envelope.request_hash)


@dataclass(slots=True)
class ReplayObservations:
    """The calls of a replay: the number of answered calls, and one time slice's unanswered envelopes.

    `recorded` are all recorded requests. A call whose request is not among them has no answer, even if it
    ended with another error first.
    """

    recorded: AbstractSet[AskedRequest]
    answered: int = 0
    missed: list[LLMEnvelope] = field(default_factory=list)

    @property
    def first_missed(self) -> LLMEnvelope | None:
        """The first envelope without an answer, in the order of subjects."""
        # Not in the order of the calls, because concurrent workers would give another one in each replay.
        return min(self.missed, key=lambda asked: (asked.subject, asked.step), default=None)

    def note(self, asked: LLMEnvelope, failure: FailureReason | None) -> None:
        """Count a call that has ended, with its failure."""
        is_miss = failure is not None and failure.category is FailureKind.REPLAY_MISS
        if AskedRequest.of(asked) not in self.recorded or is_miss:
            self.missed.append(asked)
        else:
            self.answered += 1


class ObservedGateway:
    """A gateway that may change requests, and counts the calls with and without an answer."""

    def __init__(self, gateway: AskingGateway, seen: ReplayObservations, edit: Edit | None) -> None:
        self._gateway = gateway
        self._seen = seen
        self._edit = edit

    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        """Run a call, and count it."""
        asked = self._edit(envelope) if self._edit else envelope
        answer = await self._gateway.ask(asked, earlier=earlier)
        self._seen.note(asked, answer.reason if isinstance(answer, NoDecision) else answer.result.failure)
        return answer

    async def ask_structured(
        self, envelope: LLMEnvelope, *, check: SemanticCheck | None = None
    ) -> StructuredOutcome:
        """Run a typed call, and count it."""
        asked = self._edit(envelope) if self._edit else envelope
        outcome = await self._gateway.ask_structured(asked, check=check)
        self._seen.note(asked, outcome.error)
        return outcome

    async def record(self, event: Event) -> None:
        """Record an event."""
        await self._gateway.record(event)


async def _setup(
    folder: SessionFolder,
    manifest: RunManifest,
    recorded: port_adapters.Recording,
    resumes: RecordedResumes,
    workers: int,
    own: OwnAgent | None,
) -> SessionSetup:
    tables = await asyncio.to_thread(load_tables)
    ports = Ports(
        store=port_adapters.unread_log(),
        ledger=budget_ledger(0),
        tables=tables_with(tables, manifest.capabilities),
    )
    return SessionSetup(
        session_id=manifest.session_id,
        config=PlatformConfig(
            mode="backtest", concurrency=workers, tenants={manifest.tenant: TenantConfig()}
        ),
        ports=ports,
        symbols=[source.symbol for source in manifest.data],
        data=manifest.data[0].name,
        agent=shipped_agent(manifest.data[0].name, plan_on_record(manifest)) if own is None else own.create(),
        ends_on_error=manifest.mode == "backtest",
        risk=manifest.risk,
        economics=manifest.economics,
        inference_rate=manifest.inference_rate,
        zone=manifest.zone,
        resumes=resumes,
        silence=SilenceLimit(manifest.silent_after, await kept_calendar(folder, manifest)),
        feeds=[await recorded_feed(folder, manifest, source) for source in manifest.data],
        most_bars=None,
        answers=replayed_run(manifest, recorded),
        clock=trading.clock_for("backtest"),
    )


async def recorded_feed(folder: SessionFolder, manifest: RunManifest, source: DataSource) -> BarFeed:
    """Return the bars that a run has saved for one symbol. Raises `StoreError` without their file."""
    path = folder.bars(manifest.run_number, source.symbol)
    if not await asyncio.to_thread(path.is_file):
        raise StoreError(path, "is not there. Replays and reports need the bars of their run")
    grid = await asyncio.to_thread(bar_grid, source, await kept_calendar(folder, manifest))
    return trading.kept_feed(path, symbol=source.symbol, grid=grid)


async def _changes(
    folder: SessionFolder, manifest: RunManifest, missed: LLMEnvelope | None, intact_lines: int | None
) -> tuple[str, ...]:
    """Return the changes of the first request without an answer, if the recording has its counterpart."""
    if missed is None:
        return ()
    async with aclosing(recorded_attempts(folder, manifest, intact_lines=intact_lines)) as attempts:
        async for attempt in attempts:
            if attempt.envelope.envelope_id == missed.envelope_id:
                return tuple(request_changes(attempt.envelope, missed))
    return ()


class DecisionComparison:
    """Compares the lines of a replay one by one with a decision log on disk. Lines are not kept in memory.

    `digest` is the digest of the lines so far. The methods read a file, so call them off the event loop.
    Close it at the end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] = io.BytesIO()
        self._digest = sha256()
        self._recorded_digest = sha256()
        self._compared = 0
        self._difference: Difference | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the replay's lines, in 64 hexadecimal digits."""
        return self._digest.hexdigest()

    @property
    def recorded_digest(self) -> str:
        """The SHA-256 of the recorded lines, after `open`."""
        return self._recorded_digest.hexdigest()

    def open(self) -> None:
        """Open the decision log. Raises `StoreError` if it cannot be read."""
        try:
            self._file = self._path.open("rb")
            for line in self._file:
                self._recorded_digest.update(line.rstrip(b"\r\n") + b"\n")
            self._file.seek(0)
        except OSError as e:
            raise StoreError(
                self._path, f"cannot be read ({e.strerror}). A replay is compared with this file"
            ) from e

    def add(self, lines: Sequence[bytes]) -> None:
        """Compare the next lines of the replay."""
        for line in lines:
            self._digest.update(line + b"\n")
            self._compare(line)

    def end(self) -> Difference | None:
        """Return the first difference, or None. A recording with more lines differs as well."""
        self._compare(None)
        return self._difference

    def close(self) -> None:
        """Close the decision log. A second call has no effect."""
        self._file.close()

    def _compare(self, fresh: bytes | None) -> None:
        if self._difference is not None:
            return
        recorded = self._file.readline()
        self._compared += 1
        self._difference = difference_at(
            self._compared, recorded.rstrip(b"\r\n") if recorded else None, fresh
        )

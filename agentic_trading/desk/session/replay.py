"""The same session again, from its own log: no network, and every difference named."""

import asyncio
import io
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, NamedTuple, Self

from pydantic import BaseModel, Field

from agentic_trading.client.gateway import Gateway, GatewayReply
from agentic_trading.desk.market.feed import BarFeed
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.feeds import bar_grid
from agentic_trading.desk.session.options import plan_on_record
from agentic_trading.desk.session.run_setup import recorded_attempts, replayed_run, tables_with
from agentic_trading.desk.session.session_run import (
    SessionObserver,
    SessionResult,
    SessionSetup,
    play_session,
)
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, NoDecision, StoreError
from agentic_trading.llm.event import Event
from agentic_trading.operate.log_check import check_file
from agentic_trading.operate.session_folder import DataSource, RunManifest, SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import PlatformConfig, TenantConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.platform.port_adapters import budget_ledger
from agentic_trading.platform.tables import load_tables
from agentic_trading.replay import Difference, difference_at, no_network, request_changes

Edit = Callable[[LLMEnvelope], LLMEnvelope]
"""Change an envelope before it is asked, to see what a change would have done."""


class ReplayReport(BaseModel, frozen=True):
    """The outcome of a replay. `identical` means: the decision log is the same, byte for byte.

    `answered` counts calls served from the recording, `misses` attempts that it does not hold, `unused` recorded
    attempts that were not asked for. `first_difference` and `request_changes` name where the two part, and why.
    `warnings` say what cannot be known of the log, or is wrong with it.
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
    """A run has no digest to compare with: it was killed before it ended."""

    def __init__(self, session: Path, run: int) -> None:
        self.session = session
        self.run = run
        super().__init__(
            f"{session}: run {run} did not end; go on with `run --resume --out {session}` first, "
            "or play what there is with --allow-incomplete"
        )


async def replay(
    session: Path,
    *,
    run: int | None = None,
    workers: int = 4,
    edit: Edit | None = None,
    allow_incomplete: bool = False,
) -> ReplayReport:
    """Play a run of a session again and compare; nothing is written, and the network is blocked.

    The replay ends at the first moment that asks for an answer which is not recorded. Raises `OptionError` for a
    folder that is no session, `StoreError` for a log that is missing, broken or cut off and for bars that are not those
    of the run, `NoDigestError` for a killed run. With `allow_incomplete` only what is missing is an error: the lines
    before the first broken one are played, and compared with the decision log as it is.
    """
    folder = SessionFolder(session)
    manifest = await asyncio.to_thread(folder.read_manifest, run)
    if manifest.digest is None and not allow_incomplete:
        raise NoDigestError(session, manifest.run_number)
    intact_lines, warnings = await _intact_lines(folder, manifest, allow_incomplete=allow_incomplete)
    recorded, asked = await _recording(folder, manifest, intact_lines)
    seen = ReplayObservations(asked)
    compared = DecisionComparison(folder.decisions(manifest.run_number))
    await asyncio.to_thread(compared.open)
    recorded_digest = manifest.digest or compared.recorded_digest
    played = SessionResult()

    async def after_slice(_moment: TimeSlice, new: Sequence[bytes]) -> None:
        if new:
            await asyncio.to_thread(compared.add, new)
        if seen.missed:
            raise _EndedByMissError

    with no_network(), closing(compared):
        try:
            setup = await _setup(folder, manifest, recorded, workers)
            observer = SessionObserver(after_slice, wrap=lambda gateway: ObservedGateway(gateway, seen, edit))
            await play_session(setup, played, observer)
        except _EndedByMissError:
            pass
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
        warnings=warnings,
    )


async def _recording(
    folder: SessionFolder, manifest: RunManifest, intact_lines: int | None
) -> tuple[port_adapters.Recording, AbstractSet["AskedRequest"]]:
    """Return what was answered in a run, and the requests that were asked."""
    recorded, asked = port_adapters.recording(), set[AskedRequest]()
    async for attempt in recorded_attempts(folder, manifest, intact_lines=intact_lines):
        recorded.add(attempt)
        asked.add(AskedRequest.of(attempt.envelope))
    return recorded, asked


async def _intact_lines(
    folder: SessionFolder, manifest: RunManifest, *, allow_incomplete: bool
) -> tuple[int | None, tuple[str, ...]]:
    """Return how many lines of a log are intact, None for all, and what is wrong with it.

    Raises `StoreError` for a log with anything wrong, unless that is allowed.
    """
    log = await check_file(folder.log)
    findings = log.of_run((manifest.session_id, manifest.run_number))
    if findings and not allow_incomplete:
        raise findings[0].error("; `--allow-incomplete` plays what there is")
    return log.lines if findings else None, (
        *map(str, findings),
        *(f"{folder.log}: {note}" for note in log.notes),
    )


class _EndedByMissError(TradingError):
    """Ends a replay that cannot go on."""


class AskedRequest(NamedTuple):
    """Everything that a call is counted by before its occurrence is known."""

    tenant: str
    agent: str
    step: str
    request_hash: str

    @classmethod
    def of(cls, envelope: LLMEnvelope) -> Self:
        """Return the request of an envelope."""
        return cls(envelope.tenant_id, envelope.agent_id, envelope.step, envelope.request_hash)


@dataclass(slots=True)
class ReplayObservations:
    """The calls of a replay: how many had an answer, and the envelopes of one moment that had none.

    `recorded` are all requests on record. A call whose request is not among them has no answer, even if it ended with
    another error first.
    """

    recorded: AbstractSet[AskedRequest]
    answered: int = 0
    missed: list[LLMEnvelope] = field(default_factory=list)

    @property
    def first_missed(self) -> LLMEnvelope | None:
        """The first of them by subject: which one was seen first is up to the workers."""
        return min(self.missed, key=lambda asked: (asked.subject, asked.step), default=None)

    def note(self, asked: LLMEnvelope, answer: GatewayReply) -> None:
        """Take note of a call that has ended."""
        if AskedRequest.of(asked) not in self.recorded or _is_miss(answer):
            self.missed.append(asked)
        else:
            self.answered += 1


class ObservedGateway:
    """A gateway that may change what is asked, and notes which calls had an answer."""

    def __init__(self, gateway: Gateway, seen: ReplayObservations, edit: Edit | None) -> None:
        self._gateway = gateway
        self._seen = seen
        self._edit = edit

    async def ask(self, envelope: LLMEnvelope) -> GatewayReply:
        """Ask, and see whether there was an answer."""
        asked = self._edit(envelope) if self._edit else envelope
        answer = await self._gateway.ask(asked)
        self._seen.note(asked, answer)
        return answer

    async def record(self, event: Event) -> None:
        """Record."""
        await self._gateway.record(event)


def _is_miss(answer: GatewayReply) -> bool:
    failure = answer.reason if isinstance(answer, NoDecision) else answer.result.failure
    return failure is not None and failure.category is FailureKind.REPLAY_MISS


async def _setup(
    folder: SessionFolder,
    manifest: RunManifest,
    recorded: port_adapters.Recording,
    workers: int,
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
        plan=plan_on_record(manifest),
        feeds=[await _feed(folder, manifest, source) for source in manifest.data],
        most_bars=None,
        answers=replayed_run(manifest, recorded),
        clock=trading.clock_for("backtest"),
    )


async def _feed(folder: SessionFolder, manifest: RunManifest, source: DataSource) -> BarFeed:
    path = folder.bars(manifest.run_number, source.symbol)
    if not await asyncio.to_thread(path.is_file):
        raise StoreError(path, "is not there; a replay is fed with the bars that its run was fed")
    grid = await asyncio.to_thread(bar_grid, source)
    return trading.kept_feed(path, symbol=source.symbol, grid=grid)


async def _changes(
    folder: SessionFolder, manifest: RunManifest, missed: LLMEnvelope | None, intact_lines: int | None
) -> tuple[str, ...]:
    """Say what is different in the first request without an answer, if the recording has its counterpart."""
    if missed is None:
        return ()
    async with aclosing(recorded_attempts(folder, manifest, intact_lines=intact_lines)) as attempts:
        async for attempt in attempts:
            if attempt.envelope.envelope_id == missed.envelope_id:
                return tuple(request_changes(attempt.envelope, missed))
    return ()


class DecisionComparison:
    """Compare the lines of a replay, as they come, with a decision log on disk; neither is kept.

    `digest` is that of the lines so far. Reads a file, so call it off the loop; close it in the end.
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
        """The digest of the replay's lines, in 64 hexadecimal digits."""
        return self._digest.hexdigest()

    @property
    def recorded_digest(self) -> str:
        """The digest of the recorded lines, once it is open."""
        return self._recorded_digest.hexdigest()

    def open(self) -> None:
        """Open the decision log; raises `StoreError` if it cannot be read."""
        try:
            self._file = self._path.open("rb")
            for line in self._file:
                self._recorded_digest.update(line.rstrip(b"\r\n") + b"\n")
            self._file.seek(0)
        except OSError as e:
            raise StoreError(
                self._path, f"cannot be read ({e.strerror}); a replay is compared with it"
            ) from e

    def add(self, lines: Sequence[bytes]) -> None:
        """Compare the next lines of the replay."""
        for line in lines:
            self._digest.update(line + b"\n")
            self._compare(line)

    def end(self) -> Difference | None:
        """Return the first difference, which may be that the recording goes on."""
        self._compare(None)
        return self._difference

    def close(self) -> None:
        """Close the decision log; harmless twice."""
        self._file.close()

    def _compare(self, fresh: bytes | None) -> None:
        if self._difference is not None:
            return
        recorded = self._file.readline()
        self._compared += 1
        self._difference = difference_at(
            self._compared, recorded.rstrip(b"\r\n") if recorded else None, fresh
        )

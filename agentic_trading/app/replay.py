"""The same session again, from its own log: no network, and every difference named."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, Field

from agentic_trading.app import wire, wire_budgets
from agentic_trading.app.feeds import read_bars
from agentic_trading.app.log_check import check_file
from agentic_trading.app.run_setup import recorded_attempts, refuse_unlisted
from agentic_trading.app.session_folder import DataSource, RunManifest, SessionFolder
from agentic_trading.app.session_run import SessionObserver, SessionResult, SessionSetup, play_session
from agentic_trading.client.gateway import Gateway, GatewayReply
from agentic_trading.desk.events import KINDS
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, NoDecision, StoreError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.platform import adapters
from agentic_trading.replay.divergence import first_difference, no_network, request_changes

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
    models_file: Path | None = None,
    allow_incomplete: bool = False,
) -> ReplayReport:
    """Play a run of a session again and compare; nothing is written, and the network is blocked.

    `models_file` adds rows to the table of models: a run that was started with one needs it again.
    The replay ends at the first moment that asks for an answer which is not recorded. Raises `OptionError` for a
    folder that is no session, `StoreError` for a log that is missing, broken or cut off and for bars that are not those
    of the run, `NoDigestError` for a killed run. With `allow_incomplete` only what is missing is an error: the lines
    before the first broken one are played, and compared with the decision log as it is.
    """
    folder = SessionFolder(session)
    manifest = await asyncio.to_thread(folder.read_manifest, run)
    if manifest.digest is None and not allow_incomplete:
        raise NoDigestError(session, manifest.run_number)
    attempts, warnings = await _attempts(folder, manifest, allow_incomplete=allow_incomplete)
    before = await asyncio.to_thread(_decided, folder.decisions(manifest.run_number))
    recorded_digest = manifest.digest or _digest(before)
    recorded = wire.recording(attempts)
    seen = ReplayObservations(frozenset(one.envelope.request_hash for one in attempts))
    played, lines = SessionResult(), list[bytes]()

    async def after_slice(_moment: TimeSlice, new: Sequence[bytes]) -> None:
        lines.extend(new)
        if seen.missed:
            raise _EndedByMissError

    with no_network():
        try:
            setup = await _setup(folder, manifest, recorded, workers, models_file)
            observer = SessionObserver(after_slice, wrap=lambda gateway: ObservedGateway(gateway, seen, edit))
            await play_session(setup, played, observer)
        except _EndedByMissError:
            pass
    lines = _in_words_of(before, lines)
    digest = _digest(lines)
    difference = first_difference(before, lines)
    return ReplayReport(
        session_id=manifest.session_id,
        run_number=manifest.run_number,
        bars=len(played.bars),
        workers=workers,
        recorded_digest=recorded_digest,
        digest=digest,
        identical=digest == recorded_digest and difference is None,
        answered=seen.answered,
        misses=len(recorded.misses),
        unused=len(recorded.unused),
        first_difference=None if difference is None else str(difference),
        request_changes=_changes(attempts, seen.first_missed),
        warnings=warnings,
    )


async def _attempts(
    folder: SessionFolder, manifest: RunManifest, *, allow_incomplete: bool
) -> tuple[list[LLMInteraction], tuple[str, ...]]:
    """Return what was answered in a run, and what is wrong with its log; raises `StoreError` unless that is allowed."""
    log = await check_file(folder.log)
    findings = log.of_run((manifest.session_id, manifest.run_number))
    if findings and not allow_incomplete:
        raise findings[0].error("; `--allow-incomplete` plays what there is")
    attempts = await recorded_attempts(folder, manifest, intact_lines=log.lines if findings else None)
    return attempts, (*map(str, findings), *(f"{folder.log}: {note}" for note in log.notes))


class _EndedByMissError(TradingError):
    """Ends a replay that cannot go on."""


@dataclass(slots=True)
class ReplayObservations:
    """The calls of a replay: how many had an answer, and the envelopes of one moment that had none.

    `recorded` are the hashes of all requests on record: one that is not among them has no answer, whatever error
    was seen first.
    """

    recorded: frozenset[str]
    answered: int = 0
    missed: list[LLMEnvelope] = field(default_factory=list)

    @property
    def first_missed(self) -> LLMEnvelope | None:
        """The first of them by subject: which one was seen first is up to the workers."""
        return min(self.missed, key=lambda asked: (asked.subject, asked.step), default=None)

    def note(self, asked: LLMEnvelope, answer: GatewayReply) -> None:
        """Take note of a call that has ended."""
        if asked.request_hash not in self.recorded or _is_miss(answer):
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
    recorded: wire.Recording,
    workers: int,
    models_file: Path | None,
) -> SessionSetup:
    tables = await asyncio.to_thread(wire.load_tables, models_file)
    refuse_unlisted(manifest, tables)
    fed = {source: await _fed(folder, manifest, source) for source in manifest.data}
    feeds = [wire.bars_feed(bars, symbol=source.symbol, name=source.name) for source, bars in fed.items()]
    return SessionSetup(
        session_id=manifest.session_id,
        mode="backtest",
        symbols=[source.symbol for source in manifest.data],
        feeds=feeds,
        most_bars=None,
        answers=wire.replayed(recorded, manifest.provider, manifest.model),
        tables=tables,
        store=adapters.memory_log(),
        ledger=wire_budgets.budget_ledger(0),
        clock=wire.clock_for("backtest"),
        workers=workers,
    )


async def _fed(folder: SessionFolder, manifest: RunManifest, source: DataSource) -> list[Bar]:
    path = folder.bars(manifest.run_number, source.symbol)
    if not await asyncio.to_thread(path.is_file):
        raise StoreError(path, "is not there; a replay is fed with the bars that its run was fed")
    return await read_bars(path, source.symbol)


def _changes(attempts: Sequence[LLMInteraction], missed: LLMEnvelope | None) -> tuple[str, ...]:
    """Say what is different in the first request without an answer, if the recording has its counterpart."""
    if missed is None:
        return ()
    counterparts = (one.envelope for one in attempts if one.envelope.envelope_id == missed.envelope_id)
    recorded = next(counterparts, None)
    return () if recorded is None else tuple(request_changes(recorded, missed))


def _decided(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError as e:
        raise StoreError(path, f"cannot be read ({e.strerror}); a replay is compared with it") from e


_FORMER_KINDS = {body.KIND.encode(): body.FORMERLY.encode() for body in KINDS.bodies if body.FORMERLY}


def _in_words_of(recorded: Sequence[bytes], lines: list[bytes]) -> list[bytes]:
    """Return lines with kinds named as those `recorded` are, where that was done before kinds had their present names."""
    former = set(_FORMER_KINDS.values())
    if former.isdisjoint(_kind_in(line)[1] for line in recorded):
        return lines
    split = map(_kind_in, lines)
    return [head + _FORMER_KINDS.get(kind, kind) + rest for head, kind, rest in split]


def _kind_in(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Return a line up to its kind, its kind, and the rest: no object comes after the kind in a line."""
    head, key, tail = line.rpartition(b'"kind":"')
    kind, quote, rest = tail.partition(b'"')
    return head + key, kind, quote + rest


def _digest(lines: Sequence[bytes]) -> str:
    return sha256(b"".join(line + b"\n" for line in lines)).hexdigest()

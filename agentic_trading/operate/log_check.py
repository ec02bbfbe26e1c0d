"""Check a log: its lines, the recorded ends of its runs, and the files of its session."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from hashlib import file_digest
from itertools import count
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel
from typing_extensions import override

from agentic_trading.audit.logs import has_log
from agentic_trading.audit.verify import LogReport, verify_log
from agentic_trading.llm.errors import StoreError, UnreadableBodyError
from agentic_trading.llm.event import BarChecksums, RunEnded
from agentic_trading.llm.runs import RunInLog, is_archive, runs_in_log
from agentic_trading.llm.store import GENESIS, LATEST_RUNS, Verification
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.session_folder import ROWS_A_MARK, BarsDigest, RunManifest, SessionFolder
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.port_adapters import (
    LogCheckpoint,
    LogRecords,
    checkpoints_in,
    records_of,
    seal_hashes,
)

LogVerdict = Literal["whole", "broken", "cut off"]

ARCHIVE_NOTE: Final = (
    "it is an archive with records of other logs. Run `archive check` to find missing records"
)

RunName = tuple[str, int]
"""Session and number of a run."""


class LogFinding(BaseModel, frozen=True):
    """A problem of a log or of a file in its session.

    Attributes:
        verdict: `broken` if something was changed, `cut off` if something is missing at the end.
        file: The file.
        line: The line. 0 if the problem has no line.
        record_id: The id of the record. Empty if it is unknown.
        run: The run. None if the problem concerns the whole log.
        reason: The problem.

    """

    verdict: LogVerdict
    file: Path
    line: int = 0
    record_id: str = ""
    run: RunName | None = None
    reason: str

    @override
    def __str__(self) -> str:
        return str(self.error())

    def error(self, remedy: str = "") -> StoreError:
        """Return the finding as an error that ends with `remedy`."""
        record = f"record {self.record_id}: " if self.record_id else ""
        return StoreError(self.file, f"{record}{self.reason}{remedy}", line=self.line)


class LogCheck(BaseModel, frozen=True):
    """The result of checking a log.

    Attributes:
        path: The log.
        lines: The number of intact lines.
        head: The hash of the last of them.
        findings: The problems.
        notes: Facts that are not problems, for example checks that were not possible.

    """

    path: Path
    lines: int
    head: str
    findings: tuple[LogFinding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> LogVerdict:
        """The most serious verdict: a broken log may be cut off too."""
        verdicts = {finding.verdict for finding in self.findings}
        return next((one for one in ("broken", "cut off") if one in verdicts), "whole")

    def of_run(self, name: RunName) -> list[LogFinding]:
        """Return the findings about a run and about the whole log."""
        return [finding for finding in self.findings if finding.run in (None, name)]


async def check_file(path: Path) -> LogCheck:
    """Check the log at `path`, and the bars next to it if it belongs to a session."""
    async with aclosing(records_of(path)) as records:
        verified = await records.verify()
    return await asyncio.to_thread(_checked, verified, path, await asyncio.to_thread(_session_of, path))


async def check_end(path: Path) -> LogCheck:
    """Check the last line of the log at `path`, and the ends of its newest runs.

    Takes constant time. `check_file` and `audit_log` check earlier lines and files of bars.

    Raises:
        StoreError: If the log cannot be read.

    """
    async with aclosing(records_of(path)) as records:
        return await check_end_of(records, path)


async def check_end_of(records: LogRecords, path: Path) -> LogCheck:
    """Check the end of an open log as `check_end` does. Raises `StoreError` if it cannot be read."""
    verified = await records.verify_end()
    return await asyncio.to_thread(_checked_end, verified, path)


async def check_last_run(records: LogRecords, folder: SessionFolder) -> LogCheck:
    """Check the last line of a session's log, the ends of its newest runs, and the bars of its last run.

    Raises:
        StoreError: If the log cannot be read.

    """
    verified = await records.verify_end()
    last_run = await asyncio.to_thread(folder.last_run)
    return await asyncio.to_thread(_checked, verified, folder.log, folder, last_run=last_run)


class KnownEnd(NamedTuple):
    """An end that a log had: the number and the hash of its last line, and the source of this knowledge.

    The hash may be only its first digits.
    """

    line: int
    hash: str
    source: str


async def audit_log(
    path: Path, *, checkpoint_file: Path | None = None, ends: Sequence[KnownEnd] = ()
) -> LogCheck:
    """Check a log or a session's folder completely.

    This includes hashes inside records, causes, and decision logs.

    Args:
        path: The log, or the folder.
        checkpoint_file: A file with checkpoints of this log. Each must be one of its lines.
        ends: Other ends that the log had.

    Raises:
        OptionError: If `path` is neither a log nor a session's folder.
        StoreError: If a file cannot be read.

    """
    folder = SessionFolder(path) if await asyncio.to_thread(_is_folder, path) else None
    log = path if folder is None else folder.log
    checkpoints = [] if checkpoint_file is None else await asyncio.to_thread(checkpoints_in, checkpoint_file)
    async with aclosing(records_of(log)) as records:
        lines = {1, *(one.seq for one in checkpoints), *(end.line for end in ends)}
        report = await verify_log(records, lines)
    found = await asyncio.to_thread(_checked, report.verification, log, folder)
    more = [*_inside(report, log), *(await asyncio.to_thread(_written, report.verification, folder))]
    if report.verification.is_intact:
        own = [one for one in checkpoints if one.log == report.hashes.get(1)]
        if checkpoint_file is not None and not own:
            reason = (
                f"{checkpoint_file} has no checkpoint of it: it was replaced, or the file is of other logs"
            )
            more.append(LogFinding(verdict="broken", file=log, reason=reason))
        more += _missing_ends(report, log, [*map(_end_of, own), *ends])
        more += _missing_seals(await asyncio.to_thread(seal_hashes, log), log, own)
    notes = (*found.notes, *_in_flight(report))
    return found.model_copy(update={"findings": (*found.findings, *more), "notes": notes})


def _end_of(checkpoint: LogCheckpoint) -> KnownEnd:
    return KnownEnd(checkpoint.seq, checkpoint.head, f"the checkpoint of {checkpoint.time}")


def _missing_ends(report: LogReport, log: Path, ends: Sequence[KnownEnd]) -> Iterator[LogFinding]:
    """Yield the first end that an unbroken log no longer has, by its lines and by its length."""
    lines = report.verification.lines
    other = [end for end in ends if end.line <= lines and not report.hashes[end.line].startswith(end.hash)]
    for end in sorted(other)[:1]:
        reason = f"the line is not the one of {end.source}: the log was written again up to here"
        yield LogFinding(verdict="broken", file=log, line=end.line, reason=reason)
    for end in sorted(ends)[-1:]:
        if end.line > lines:
            reason = f"the log ends here, and had {end.line} lines by {end.source}"
            yield LogFinding(verdict="cut off", file=log, line=lines, reason=reason)


def _missing_seals(
    seals: Sequence[str], log: Path, checkpoints: Sequence[LogCheckpoint]
) -> Iterator[LogFinding]:
    """Yield a finding if a seal of a checkpoint is no longer there."""
    known = {GENESIS, *seals}
    for missing in [one for one in checkpoints if one.seals not in known][:1]:
        reason = f"it lacks the last seal of the checkpoint of {missing.time}"
        yield LogFinding(verdict="broken", file=log, reason=reason)


def _is_folder(path: Path) -> bool:
    """Whether a session's folder is at `path`, and not a log. Raises `OptionError` if it is neither."""
    if has_log(SessionFolder(path).log):
        return True
    if has_log(path):
        return False
    allowed = f"a log, or a folder that holds {SessionFolder(path).log.name}"
    raise OptionError("PATH", f"{path}, where no log is", allowed)


def _session_of(log: Path) -> SessionFolder | None:
    folder = SessionFolder(log.parent)
    return folder if folder.log.name == log.name and folder.last_run() else None


def _checked_end(verified: Verification, path: Path) -> LogCheck:
    folder = _session_of(path)
    return _checked(
        verified, path, folder, last_run=0 if folder is None else folder.last_run(), has_bars=False
    )


def _checked(
    verified: Verification,
    path: Path,
    folder: SessionFolder | None,
    *,
    last_run: int | None = None,
    has_bars: bool = True,
) -> LogCheck:
    """Return the check of a log and its session, with its bars if it `has_bars`.

    With `last_run`, check only the newest runs.
    """

    def check(*findings: LogFinding, notes: tuple[str, ...] = ()) -> LogCheck:
        return LogCheck(path=path, lines=verified.lines, head=verified.head, findings=findings, notes=notes)

    if not verified.is_intact:
        place = {"file": path, "line": verified.broken_line, "record_id": verified.broken_id}
        verdict = "cut off" if verified.is_unfinished else "broken"
        return check(LogFinding.model_validate({**place, "verdict": verdict, "reason": verified.reason}))
    if is_archive(verified.runs):
        return check(notes=(ARCHIVE_NOTE,))
    try:
        runs, wrong_ends = runs_in_log(verified.runs)
    except UnreadableBodyError as e:
        return check(LogFinding(verdict="broken", file=path, record_id=e.event_id, reason=str(e)))
    wrong = [
        LogFinding(verdict="broken", file=path, line=end.line, record_id=end.record_id, reason=end.reason)
        for end in wrong_ends
    ]
    in_log = {run.name: run for run in runs}
    numbers = range(1, folder.last_run() + 1) if folder and last_run is None else [last_run or 1]
    manifests, unreadable = ({}, []) if folder is None else _manifests(folder, numbers)
    names = dict.fromkeys([*manifests, *in_log])
    bars_of = folder if has_bars else None
    if last_run is not None:
        is_all = len(verified.runs) < LATEST_RUNS
        names = dict.fromkeys([*(name for name in manifests if is_all or name in in_log), *[*in_log][-1:]])
    of_runs = [
        finding
        for name in names
        for finding in _of_run(check(), name, bars_of, manifests.get(name), in_log.get(name))
    ]
    return check(*wrong, *unreadable, *of_runs, notes=tuple(_notes(manifests, in_log)))


def _manifests(
    folder: SessionFolder, numbers: Iterable[int]
) -> tuple[dict[RunName, RunManifest], list[LogFinding]]:
    """Return the manifests of these runs, and a finding for each unreadable one."""
    found: dict[RunName, RunManifest] = {}
    unreadable: list[LogFinding] = []
    for number in numbers:
        try:
            manifest = folder.read_manifest(number)
        except OptionError as e:
            unreadable.append(LogFinding(verdict="broken", file=folder.manifest(number), reason=str(e)))
        else:
            found[manifest.session_id, manifest.run_number] = manifest
    return found, unreadable


def _notes(manifests: Mapping[RunName, RunManifest], in_log: Mapping[RunName, RunInLog]) -> Iterator[str]:
    """Yield notes about runs without a recorded start and end."""
    for name, manifest in manifests.items():
        if not manifest.starts and name not in in_log:
            yield f"run {name[1]} is of an earlier release, which recorded no end: lines cut from it do not show"
    if not manifests and not in_log:
        yield "no run has recorded its start and its end: lines cut from the end do not show"


def _of_run(
    log: LogCheck,
    name: RunName,
    folder: SessionFolder | None,
    manifest: RunManifest | None,
    run: RunInLog | None,
) -> Iterator[LogFinding]:
    """Yield problems of a run in the log or in the session's folder."""
    if run is None and manifest is not None and not manifest.starts:
        return
    starts = 0 if manifest is None else manifest.starts
    if run is not None and run.ended is not None and run.started.start_number >= starts:
        if folder is not None:
            yield from _bars(folder, name, run.ended)
        return
    of_session = "" if manifest is not None else f" of session {name[0]}"
    because = "its process was killed or still runs, or lines behind this one are cut off"
    if manifest is not None and manifest.digest is not None:
        because = "it has ended, so lines behind this one are cut off"
    reason = f"the log ends without the end of run {name[1]}{of_session}: {because}"
    yield LogFinding(verdict="cut off", file=log.path, line=log.lines, run=name, reason=reason)


def _bars(folder: SessionFolder, name: RunName, ended: RunEnded) -> Iterator[LogFinding]:
    """Yield a finding for each file of bars that differs from the bars of the run."""
    for fed in ended.bars:
        path = folder.bars(name[1], fed.symbol)
        digest = BarsDigest()
        try:
            with path.open("rb") as file:
                for row in file:
                    digest.add(row)
        except FileNotFoundError:
            yield LogFinding(verdict="broken", file=path, run=name, reason="is missing")
            continue
        except OSError as e:
            reason = f"cannot be read ({e.strerror}), so it was not compared with the bars of the run"
            yield LogFinding(verdict="broken", file=path, run=name, reason=reason)
            continue
        found = digest.of(fed.symbol)
        if found.sha256 != fed.sha256:
            line, reason = _difference(found, fed)
            yield LogFinding(verdict="broken", file=path, line=line, run=name, reason=reason)


def _difference(found: BarChecksums, fed: BarChecksums) -> tuple[int, str]:
    """Return the first line that may differ in a file of bars, and a description."""
    same = next(
        place
        for place in count()
        if place == min(len(found.marks), len(fed.marks)) or found.marks[place] != fed.marks[place]
    )
    first = same * ROWS_A_MARK + 2 if same else 1
    last = min((same + 1) * ROWS_A_MARK, max(found.rows, fed.rows)) + 1
    rows = f"it has {found.rows} rows, {fed.rows} were fed: " if found.rows != fed.rows else ""
    return (
        first,
        f"{rows}the first difference from what the run was fed is between lines {first} and {last}",
    )


def _inside(report: LogReport, log: Path) -> Iterator[LogFinding]:
    """Yield problems inside the records of an unbroken log."""
    for wrong in report.wrong_hashes:
        reason = f"it was written with a wrong {wrong.field}"
        yield LogFinding(
            verdict="broken", file=log, line=wrong.line, record_id=wrong.record_id, reason=reason
        )
    for missing in report.missing_causes:
        reason = f"it names a cause that is not in its trace: {missing.cause}"
        yield LogFinding(
            verdict="broken", file=log, line=missing.line, record_id=missing.record_id, reason=reason
        )


def _in_flight(report: LogReport) -> Iterator[str]:
    """Yield a note about sent attempts without an outcome."""
    if report.in_flight:
        sent = pluralize(report.in_flight, "sent attempt")
        yield f"{sent} without an outcome on record. A process was killed during the call, or the call is still in flight"


def _written(verified: Verification, folder: SessionFolder | None) -> Sequence[LogFinding]:
    """Return a finding for each decision log and manifest with another digest than recorded."""
    if folder is None or not verified.is_intact:
        return ()
    manifests, _ = _manifests(folder, range(1, folder.last_run() + 1))
    found = []
    for run in runs_in_log(verified.runs)[0]:
        manifest = manifests.get(run.name)
        digest = run.ended.digest if run.ended is not None else None
        if manifest is None or digest is None or run.started.start_number < manifest.starts:
            continue
        for file, other in (
            (folder.decisions(run.name[1]), _sha256(folder.decisions(run.name[1]))),
            (folder.manifest(run.name[1]), manifest.digest),
        ):
            if other != digest:
                reason = f"the decision log has the digest {digest} on record, and here {other or 'none'}"
                found.append(LogFinding(verdict="broken", file=file, run=run.name, reason=reason))
    return found


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return None
    except OSError as e:
        raise StoreError(path, f"cannot be read ({e.strerror})") from e

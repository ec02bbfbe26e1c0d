"""Prepare a run: a new one, or the rest of an interrupted one."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from agentic_trading import __version__
from agentic_trading.clock import SystemClock
from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.market.calendar import ExchangeCalendar
from agentic_trading.desk.planning.params import PlanTerms
from agentic_trading.desk.session import run_resume, trading
from agentic_trading.desk.session.agents import OwnAgent, agent_of_run, shipped_agent, source_changes
from agentic_trading.desk.session.calendars import keep_calendar
from agentic_trading.desk.session.families import family_changes
from agentic_trading.desk.session.feeds import BarSource, ReadAhead
from agentic_trading.desk.session.options import RunOptions, plan_on_record
from agentic_trading.ids import derived_id, random_id
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities, Capability
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.store import LogEntry
from agentic_trading.logger import get_logger
from agentic_trading.operate.providers import (
    asked_providers,
    base_url_of,
    check_providers,
    patience_of,
    ready,
    select_provider,
)
from agentic_trading.operate.session_folder import MADE_BY_RUN, RunManifest, SessionFolder, read_elsewhere
from agentic_trading.platform import port_adapters
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.tables import Tables

log = get_logger()


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that is ready to start. Its manifest is written. `earlier` is None for a new run."""

    manifest: RunManifest
    answers: trading.AnswerSource
    agent: Agent
    earlier: run_resume.InterruptedRun | None = None


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run whose answers are used."""

    manifest: RunManifest
    answers: port_adapters.Recording


async def new_run(
    options: RunOptions,
    folder: SessionFolder,
    named: Sequence[BarSource],
    store: port_adapters.Log,
    tables: Tables,
    calendar: ExchangeCalendar | None,
) -> PreparedRun:
    """Prepare the folder's next run. Files are written only if the run can start.

    Raises:
        OptionError: If the source of answers cannot be used. Also `WeightsError` or `FaultsError`.
        StoreError: If the folder or the log cannot be used.
        StoreLockedError: If another process runs in the folder.

    """
    recorded = await _recorded_run(options)
    own = options.agent if recorded is None else _agent_of_recording(options, recorded.manifest, named)
    answers, capabilities = await _answer_source(options, recorded, tables, own)
    async with _closed_on_error(answers.providers):
        await asyncio.to_thread(folder.prepare)
        await store.open()
        run_number = await asyncio.to_thread(folder.last_run) + 1
        symbols = [source.data.symbol for source in named]
        terms = options.plan_terms(None if recorded is None else plan_on_record(recorded.manifest))
        manifest = RunManifest(
            version=3 if own or options.has_new_terms else 2,
            package=__version__,
            session_id=_session_id(options, recorded, answers, run_number, symbols, own),
            run_number=run_number,
            tenant=options.tenant,
            mode=options.mode,
            answers=options.provider,
            provider=answers.llm,
            model=answers.model,
            base_url=base_url_of(options),
            models=answers.models,
            fallback=answers.fallback,
            providers=asked_providers(options),
            capabilities=tuple(capabilities),
            config_sha256=options.config.config_sha256,
            data=tuple(source.data for source in named),
            bars=options.most_bars,
            budget_usd=options.budget,
            max_calls=options.max_calls,
            inject=options.inject,
            seed=options.seed,
            workers=options.workers,
            bus=run_resume.bus_of(options),
            plan=None if terms is None else terms.on_record,
            agent=None if own is None else own.on_record,
            risk=options.config.risk,
            economics=options.config.economics,
            inference_rate=options.rate_text,
            zone=options.config.zone,
            calendar=options.calendar,
            silent_after=options.silence,
            first_seq=(await store.head())[0],
            starts=1,
            started_at=SystemClock().now(),
        )
        await keep_calendar(folder, run_number, calendar)
        await asyncio.to_thread(folder.write_manifest, manifest)
        return PreparedRun(manifest, answers, _new_agent(own, manifest))


def _agent_of_recording(
    options: RunOptions, recorded: RunManifest, named: Sequence[BarSource]
) -> OwnAgent | None:
    """Return the agent of a recorded run. Raises `OptionError` for other symbols, or another plan."""
    own = agent_of_run(options.agent, recorded)
    _refuse_other_symbols(recorded, named)
    run_resume.refuse_changes(run_resume.terms_now_and_before(options, recorded), "the recorded run")
    return own


async def resumed_run(
    options: RunOptions,
    folder: SessionFolder,
    feeds: Sequence[ReadAhead],
    store: port_adapters.Log,
    tables: Tables,
) -> PreparedRun:
    """Prepare the rest of the folder's last run, with its answers and bars.

    Limits, the number of bars and the number of workers come from `options`. If an error is raised, no file
    is written.

    Raises:
        OptionError: If the folder has no run, other inputs are given than at the start, fewer bars are
            allowed than the run has used, or the run has ended and its sources have no more bars. Also all
            errors of `new_run`.

    """
    manifest = await run_resume.resumable_manifest(options, folder, feeds)
    own = agent_of_run(options.agent, manifest)
    for warning in (*source_changes(own, manifest), *family_changes(manifest)):
        log.warning("agent_changed", detail=warning)
    answers, _ = await _answer_source(options, await _recorded_run(options), tables, own, manifest.model)
    async with _closed_on_error(answers.providers):
        await asyncio.to_thread(folder.prepare)
        await store.open()
        # Read again, because until this process had the lock, another one may have ended the run.
        manifest = await run_resume.resumable_manifest(options, folder, feeds)
        await run_resume.refuse_incomplete(folder, manifest, store.records)
        earlier = await run_resume.read_interrupted_run(folder, manifest, store.records)
        await read_elsewhere(options.answers_from, earlier.asked)
        if options.is_repeatable:
            earlier = earlier.without_lost()
        if options.provider != "recorded":
            answers = replace(answers, recorded=earlier.answers, lost=earlier.lost)
        resumed = {
            "bars": options.most_bars,
            "budget_usd": options.budget,
            "config_sha256": options.config.config_sha256,
            "max_calls": options.max_calls,
            "workers": options.workers,
            "interrupted": False,
            "digest": None,
            "starts": manifest.starts + 1,
        }
        manifest = manifest.model_copy(update=resumed)
        await asyncio.to_thread(folder.write_manifest, manifest)
        return PreparedRun(manifest, answers, _new_agent(own, manifest), earlier)


@asynccontextmanager
async def _closed_on_error(providers: Providers) -> AsyncGenerator[None]:
    """Close the providers of a run that cannot begin."""
    try:
        yield
    except BaseException:
        await providers.aclose()
        raise


async def recorded_attempts(
    folder: SessionFolder, manifest: RunManifest, *, intact_lines: int | None = None
) -> AsyncGenerator[LLMInteraction]:
    """Yield the attempts of one run of a session in the log's order, up to line `intact_lines`.

    Raises `StoreError` for a missing or broken log.
    """
    async with aclosing(recorded_entries(folder, manifest, intact_lines=intact_lines)) as entries:
        async for entry in entries:
            if isinstance(entry.record, LLMInteraction):
                yield entry.record


async def recorded_entries(
    folder: SessionFolder, manifest: RunManifest, *, intact_lines: int | None = None
) -> AsyncGenerator[LogEntry]:
    """Yield the records of one run of a session, up to line `intact_lines`.

    Raises `StoreError` for a missing or broken log.
    """
    following = await asyncio.to_thread(folder.last_seq, manifest)
    last_seq = min((line for line in (following, intact_lines) if line is not None), default=None)
    if last_seq is not None and last_seq <= manifest.first_seq:
        return
    async with (
        aclosing(port_adapters.records_of(folder.log)) as records,
        aclosing(records.scan(manifest.first_seq)) as entries,
    ):
        async for entry in entries:
            yield entry
            if entry.seq == last_seq:
                break


async def _recorded_run(options: RunOptions) -> RecordedRun | None:
    """Return the run of `--from`, or None."""
    if options.recorded_from is None:
        return None
    with ExitStack() as unpacked:
        path = await asyncio.to_thread(unpacked.enter_context, session_folder(options.recorded_from))
        folder = SessionFolder(path)
        manifest = await asyncio.to_thread(folder.read_manifest, option="--from")
        answers = port_adapters.recording()
        async for attempt in recorded_attempts(folder, manifest):
            answers.add(attempt)
        await asyncio.to_thread(unpacked.close)
    return RecordedRun(manifest, answers)


async def _answer_source(
    options: RunOptions,
    recorded: RecordedRun | None,
    tables: Tables,
    own: OwnAgent | None,
    model: str = "",
) -> tuple[trading.AnswerSource, Sequence[Capability]]:
    """Return the source of a run's answers, and the rows of its models.

    `model` is the one of a resumed run.
    """
    if recorded is not None:
        return replayed_run(recorded.manifest, recorded.answers), recorded.manifest.capabilities
    if not options.asks_models:
        otherwise = None if own is None else own.offline_rule()
        rules = trading.rules(inject=options.inject, seed=options.seed, otherwise=otherwise)
        if options.is_remote:
            rules = replace(rules, providers=Providers({}))
        return rules, [tables.capabilities.of(rules.llm, rules.model)]
    selection = select_provider(options, tables, now=SystemClock().now(), model=model)
    providers = await ready(options, selection, trading.RULES)
    async with _closed_on_error(providers):
        if options.hosted and not options.is_remote:
            await check_providers(providers, selection)
        answering = {name: providers.of(name) for name in providers.names or ()}
        if own is not None:
            answering |= trading.offline_answers(selection.providers, answering, own.offline_rule())
        faulty = {n: trading.with_faults(each, options.inject, options.seed) for n, each in answering.items()}
    answers = trading.AnswerSource(
        providers=Providers(faulty),
        llm=selection.llm,
        model=selection.model,
        counts=options.estimate == "exact",
        models=selection.names,
        fallback=selection.fallback,
        patience=patience_of(asked_providers(options)),
    )
    return answers, selection.rows


def replayed_run(manifest: RunManifest, recorded: port_adapters.Recording) -> trading.AnswerSource:
    """Return a source with the answers of a recorded run."""
    return replace(
        trading.replayed(recorded, manifest.provider, manifest.model),
        models=manifest.models,
        fallback=manifest.fallback,
        patience=patience_of(manifest.providers),
        of_bus=bool(manifest.bus.url),
    )


def tables_with(tables: Tables, capabilities: Iterable[Capability]) -> Tables:
    """Return the tables with additional rows of models, which replace rows of the same model."""
    return replace(tables, capabilities=Capabilities([*tables.capabilities, *capabilities]))


def _session_id(
    options: RunOptions,
    recorded: RecordedRun | None,
    answers: trading.AnswerSource,
    run_number: int,
    symbols: Sequence[str],
    own: OwnAgent | None,
) -> str:
    """Return the session id. All ids of a run are derived from it."""
    # A recorded run in its own folder keeps the id, and so the digest. In a log with other runs it gets
    # another id, because equal ids would be taken for the same records.
    if recorded is not None:
        before = recorded.manifest.session_id
        return before if run_number == 1 else derived_id("session", before, run_number)
    # A shared ledger identifies calls by their ids, so that the same run on another host needs other ids.
    nonce = () if options.config.ledger.url is None else (random_id(),)
    plan = options.plan_terms()
    terms = () if plan in (None, PlanTerms()) else (plan.family, plan.rounds)
    return derived_id(
        "session",
        options.mode,
        answers.llm,
        answers.model,
        options.seed,
        run_number,
        *symbols,
        *terms,
        *(() if own is None else own.id_parts),
        *nonce,
    )


def _refuse_other_symbols(recorded: RunManifest, named: Sequence[BarSource]) -> None:
    asked = [source.data.symbol for source in named]
    before = [source.symbol for source in recorded.data]
    if sorted(asked) != sorted(before):
        allowed = f"bars of {', '.join(before)}, the symbols of the recorded run"
        raise OptionError("--data", f"bars of {', '.join(asked)}", allowed)


def _new_agent(own: OwnAgent | None, manifest: RunManifest) -> Agent:
    return shipped_agent(manifest.data[0].name, plan_on_record(manifest)) if own is None else own.create()


SHIPPED = Path(str(files("agentic_trading.desk") / "recordings"))


_PACKED_AT = (1980, 1, 1, 0, 0, 0)
"""The time of all files in a package of a session, so that equal sessions give equal packages."""


def shipped_names(shipped: Path = SHIPPED) -> list[str]:
    """Return the names that `--from` accepts instead of a folder, sorted."""
    return sorted(path.stem for path in shipped.glob("*.zip"))


@contextmanager
def session_folder(path: Path, *, shipped: Path = SHIPPED) -> Iterator[Path]:
    """Yield the folder of a session: `path` if it is a folder, else the shipped recording with this name.

    A shipped recording is unpacked until the block ends. Reads and writes files, so enter it off the event
    loop.

    Raises:
        OptionError: If neither exists.

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
    """Write the files of a session to a package for `session_folder`. Equal sessions give equal bytes."""
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

"""Estimate the calls, the cost and the time of a run with a model, before it starts."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from agentic_trading.clock import SystemClock
from agentic_trading.desk.market.bar import EPOCH
from agentic_trading.desk.session import trading
from agentic_trading.desk.session.agents import OwnAgent, agent_of_run, shipped_agent
from agentic_trading.desk.session.feeds import STDIN, BarSource, open_feeds, sources, without_symbol
from agentic_trading.desk.session.lengths import refuse_unfit_bars
from agentic_trading.desk.session.options import RunOptions, plan_on_record
from agentic_trading.desk.session.run import loaded_tables, stop_on_signals
from agentic_trading.desk.session.run_resume import read_interrupted_run, refuse_other_inputs
from agentic_trading.desk.session.session_run import (
    SessionObserver,
    SessionResult,
    SessionSetup,
    play_session,
)
from agentic_trading.desk.session.trading_session import TradingSession
from agentic_trading.desk.time_slices import TimeSlice
from agentic_trading.governance.prices import bound
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMProvider
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, Providers
from agentic_trading.operate.choices import CONFIGURED
from agentic_trading.operate.providers import ProviderSelection, ready, select_provider
from agentic_trading.operate.session_folder import RunManifest, SessionFolder
from agentic_trading.platform import port_adapters
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.platform.tables import Tables

HOSTED_CALL_S: Final = 20.0
"""Assumed duration of a call over a network. The real one depends on the model, its thinking and the day."""

LOCAL_READ_BYTES_A_S: Final = 350.0
LOCAL_WRITE_S: Final = 8.0
"""Time of SmolLM2-135M on one core: 151 prompt tokens per second, and about 600 tokens of answer.

A prompt token has about 2.3 bytes. A busy machine takes longer: two calls with an estimate of 24 s each took
22 s of CPU each, and 35 s on two shared cores.
"""

_UNLIMITED_NUSD: Final = 9 * 10**15


@dataclass(frozen=True, slots=True)
class Preflight:
    """The estimate of a run. For a run that `goes_on` (a resumed run), all values are for its rest.

    Attributes:
        calls: The number of calls that the rules make over the same bars, at most `max_calls`. None for a
            stream. Repeated calls after answers that are not accepted are not included.
        max_calls: The limit on calls, or None.
        bound_nusd: The maximum cost of `calls`, by the amounts that the gate reserves. It is 0 only if no
            call can cost anything, whatever the answers are. None if it is not known.
        budget_nusd: The maximum cost of all calls.
        seconds: The estimated time, or None.
        seconds_a_call: The estimated time of one call, or None.
        first_nusd: The maximum cost of the first call.

    """

    provider: str
    models: tuple[str, ...]
    calls: int | None
    max_calls: int | None
    bound_nusd: int | None
    budget_nusd: int
    seconds: float | None
    seconds_a_call: float | None
    first_nusd: int = 0
    goes_on: bool = False

    @property
    def is_free(self) -> bool:
        """Whether the run is certainly free."""
        return self.bound_nusd == 0


async def preflight(options: RunOptions) -> Preflight:
    """Return the estimate of a run with a model. No call is sent, and no file is written.

    The built-in rules run the session in memory, about one second for 2,000 bars. The first SIGINT or SIGTERM
    cancels this task.

    Raises:
        OptionError: If the options or the model cannot be used.
        WeightsError: If the weights of a local model cannot be used.
        MarketError: If a bar is broken.
        StoreError: If the log of a resumed run cannot be read.

    """
    with stop_on_signals():
        return await _preflight(options)


async def _preflight(options: RunOptions) -> Preflight:
    tables = await loaded_tables(options)
    named = await asyncio.to_thread(sources, options.data)
    manifest = await _resumed_manifest(options, named)
    now = SystemClock().now()
    selection = select_provider(options, tables, now=now, model=manifest.model if manifest else "")
    async with aclosing(await ready(options, selection, trading.RULES)):
        pass  # opened only so that a model that cannot be used is found before you confirm the cost
    remaining = await _remaining(options, manifest)
    prices = (tables.prices.price(row.provider, row.model, at=now) for row in selection.rows)
    is_free = all(price.is_free for price in prices)
    if any(without_symbol(source.data.name) == STDIN for source in named):
        return _expected(options, selection, remaining, None, is_free=is_free)
    own = _own_agent(options, manifest)
    otherwise = None if own is None else own.offline_rule()
    rehearsal = Rehearsal(
        trading.rules(inject="", seed="", otherwise=otherwise).providers.of(LLMProvider.RULES),
        tables,
        now,
        remaining.after,
        selection.alternatives,
    )
    await _rehearse(options, named, manifest, selection, remaining, rehearsal)
    return _expected(options, selection, remaining, rehearsal, is_free=is_free)


@dataclass(frozen=True, slots=True)
class _Remaining:
    """The budget and the calls that a run may still use. Answers up to `after` are already on record."""

    budget_nusd: int
    calls: int | None
    after: datetime = EPOCH
    goes_on: bool = False


@dataclass(slots=True)
class Rehearsal:
    """The rules as a stand-in for a model.

    Counts and prices requests after `after`, with all `alternatives`.
    """

    inner: Provider
    tables: Tables
    now: datetime
    after: datetime
    alternatives: Mapping[EnvelopeWorkflow, Sequence[Capability]]
    calls: int = 0
    bound_nusd: int = 0
    first_nusd: int = 0
    bytes_in: int = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer with the rules, under the model's name."""
        envelope = request.envelope
        if envelope.as_of is None or envelope.as_of > self.after:
            capability = self.tables.capabilities.of(envelope.provider, envelope.model)
            self.calls += 1
            most_nusd = self._bound(request, capability)
            # Each alternative is added, because a call that fails may be sent to all of them in turn.
            for other in self.alternatives.get(envelope.workflow, ()):
                again = envelope.model_copy(update={"provider": other.provider, "model": other.model})
                most_nusd += self._bound(replace(request, envelope=again), other)
            self.first_nusd = self.first_nusd or most_nusd
            self.bound_nusd += most_nusd
            self.bytes_in += len(request.system) + len(request.user)
        return replace(await self.inner.complete(request), model=envelope.model)

    def _bound(self, request: ModelRequest, capability: Capability) -> int:
        return bound(request, capability, self.tables.prices, at=self.now).nusd

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the rules' count."""
        return await self.inner.count_tokens(request)

    async def aclose(self) -> None:
        """Close the rules."""
        await self.inner.aclose()


@dataclass(slots=True)
class _CallLimit:
    """Ends a rehearsal at the maximum number of calls of the run."""

    rehearsal: Rehearsal
    most: int | None
    sessions: list[TradingSession] = field(default_factory=list)

    async def after_slice(self, _moment: TimeSlice, _lines: Sequence[bytes]) -> None:
        if self.most is not None and self.rehearsal.calls >= self.most:
            self.sessions[0].stop()


async def _rehearse(
    options: RunOptions,
    named: Sequence[BarSource],
    manifest: RunManifest | None,
    selection: ProviderSelection,
    remaining: _Remaining,
    rehearsal: Rehearsal,
) -> None:
    feeds = await open_feeds(named, options.timeframe, trading.wall_clock(options.mode), options.columns)
    own = _own_agent(options, manifest)
    refuse_unfit_bars(own, feeds)
    terms = options.plan_terms(plan_on_record(manifest) if manifest else None)
    setup = SessionSetup(
        session_id="preflight",
        config=PlatformConfig(mode="backtest", concurrency=options.workers),
        ports=Ports(
            store=port_adapters.unread_log(),
            ledger=port_adapters.budget_ledger(_UNLIMITED_NUSD),
            tables=rehearsal.tables,
        ),
        symbols=[feed.symbol for feed in feeds],
        data=named[0].data.name,
        agent=shipped_agent(named[0].data.name, terms) if own is None else own.create(),
        ends_on_error=False,
        feeds=feeds,
        most_bars=options.most_bars,
        answers=trading.AnswerSource(
            Providers.every(rehearsal), selection.llm, selection.model, models=selection.names
        ),
        clock=trading.clock_for("backtest"),
    )
    limit = _CallLimit(rehearsal, remaining.calls)
    await play_session(
        setup, SessionResult(), SessionObserver(limit.after_slice, on_start=limit.sessions.append)
    )


def _own_agent(options: RunOptions, manifest: RunManifest | None) -> OwnAgent | None:
    return options.agent if manifest is None else agent_of_run(options.agent, manifest)


def _expected(
    options: RunOptions,
    selection: ProviderSelection,
    remaining: _Remaining,
    rehearsal: Rehearsal | None,
    *,
    is_free: bool,
) -> Preflight:
    calls = bound_nusd = a_call_s = seconds = None
    if rehearsal is not None:
        calls = rehearsal.calls if remaining.calls is None else min(rehearsal.calls, remaining.calls)
        share = calls / rehearsal.calls if rehearsal.calls else 0
        bound_nusd = min(int(rehearsal.bound_nusd * share), remaining.budget_nusd)
        # Not 0, because that would mean a free run, and the model may make other calls than the rules, at
        # another price.
        if calls and remaining.budget_nusd and not bound_nusd:
            bound_nusd = None
        a_call_s = _seconds_a_call(options, rehearsal)
        at_once = min(options.workers, len(options.data)) if options.hosted else 1
        seconds = calls * a_call_s / at_once
    return Preflight(
        provider=options.provider,
        models=tuple(dict.fromkeys(_name(options, row) for row in selection.rows)),
        calls=calls,
        max_calls=remaining.calls,
        bound_nusd=0 if is_free else bound_nusd,
        budget_nusd=remaining.budget_nusd,
        seconds=seconds,
        seconds_a_call=a_call_s,
        first_nusd=rehearsal.first_nusd if rehearsal else 0,
        goes_on=remaining.goes_on,
    )


def _seconds_a_call(options: RunOptions, rehearsal: Rehearsal) -> float:
    if options.hosted:
        return HOSTED_CALL_S
    return rehearsal.bytes_in / max(1, rehearsal.calls) / LOCAL_READ_BYTES_A_S + LOCAL_WRITE_S


def _name(options: RunOptions, row: Capability) -> str:
    return f"{row.provider}/{row.model}" if options.provider == CONFIGURED else row.model


async def _resumed_manifest(options: RunOptions, named: Sequence[BarSource]) -> RunManifest | None:
    """Return the manifest of the run to resume, or None. Raises `OptionError` if its inputs have changed."""
    if not options.resume:
        return None
    manifest = await asyncio.to_thread(SessionFolder(options.out).read_manifest, option="--out")
    refuse_other_inputs(options, manifest, [source.data.name for source in named])
    return manifest


async def _remaining(options: RunOptions, manifest: RunManifest | None) -> _Remaining:
    """Return the budget and the calls of a run, for a resumed run without those already used."""
    if manifest is None:
        return _Remaining(options.budget_nusd, options.max_calls)
    folder = SessionFolder(options.out)
    async with aclosing(port_adapters.records_of(folder.log)) as records:
        earlier = await read_interrupted_run(folder, manifest, records)
    return _Remaining(
        budget_nusd=max(0, options.budget_nusd - earlier.spent_nusd),
        calls=None if options.max_calls is None else max(0, options.max_calls - earlier.calls),
        after=max((kept.last_close for kept in earlier.bars.values()), default=EPOCH),
        goes_on=True,
    )

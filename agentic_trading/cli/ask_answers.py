"""The `ask` command: sum evidence from a log, ask a model or the rules, and print the result."""

import asyncio
import shlex
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, assert_never

from rich.console import RenderableType

from agentic_trading.audit.spend import spend_report
from agentic_trading.audit.trace import AmbiguousIdError, full_id
from agentic_trading.cancellation import run_async
from agentic_trading.cli import output
from agentic_trading.cli.chains import frame_table, warn_once
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.settings import configure_logging, start
from agentic_trading.client.call_log import EarlierCalls
from agentic_trading.client.frame_calls import ASK, ASK_SCHEMA, INSTRUCTIONS, envelope_of
from agentic_trading.client.frames import FrameRecords, RecursionLimits
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.client.recursion import (
    Concluded,
    Paused,
    Recursion,
    RecursionOutcome,
    ResumeError,
    Unfinished,
)
from agentic_trading.clock import SystemClock
from agentic_trading.governance.events import KINDS as GOVERNANCE
from agentic_trading.governance.events import AttemptDispatched
from agentic_trading.governance.prices import bound
from agentic_trading.ids import random_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy, nusd_from_usd
from agentic_trading.llm.models import Capability
from agentic_trading.llm.runs import run_on_record
from agentic_trading.llm.store import Record, Records
from agentic_trading.operate import lines, providers
from agentic_trading.operate.choices import MODELS, listed, with_model
from agentic_trading.operate.providers import model_row
from agentic_trading.operate.question_rules import ASK_RULES, FAILURES, SPEND
from agentic_trading.operate.session_folder import read_elsewhere
from agentic_trading.operate.trace_lines import newest_chains
from agentic_trading.platform import port_adapters
from agentic_trading.platform.clients import remote_gateway
from agentic_trading.platform.config import (
    BusConfig,
    ModelConfig,
    PlatformConfig,
    ProviderConfig,
    provider_and_model,
)
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.platform import Platform, Ports, run_started
from agentic_trading.platform.settings import load_config, user_name
from agentic_trading.platform.tables import Tables, factories_of, tables_of
from agentic_trading.platform.urls import without_password
from agentic_trading.structured.prompts import first_request

AGENT: Final = "ask"
SUBJECT: Final = "question"
"""Agent and subject of the calls of `ask`, which are not evidence for later questions."""

DECISIONS: Final = "last decisions"

MOST_ROWS: Final = 60
MOST_DECISIONS: Final = 50
MOST_CALLS: Final = 500
"""The number of newest calls whose failures are counted."""

ANSWER_TOKENS: Final = 700
PROVIDERS: Final = (LLMProvider.RULES.value, LLMProvider.SCRIPTED.value, *MODELS)
"""Values of `--provider` in addition to the providers of the configuration."""


@dataclass(frozen=True, slots=True)
class AskOptions:
    """Options of the command line.

    The default `provider` is that of the configuration's `[models]` for `general`, or the rules.
    """

    log: Path
    config: Path | None
    provider: str
    model: str
    base_url: str | None
    max_cost_usd: Decimal | None
    max_depth: int
    max_children: int
    max_calls: int
    bus: str | None = None
    answers_from: tuple[Path, ...] = ()
    own_model: ModelConfig | None = None

    @property
    def limits(self) -> RecursionLimits:
        """The limits of a new tree. Raises `OptionError` if `max_cost_usd` is not an amount."""
        try:
            most = nusd_from_usd(self.max_cost_usd or Decimal(0))
        except ValueError as e:
            raise OptionError("--max-cost", self.max_cost_usd, "an amount in dollars, 0 or more") from e
        return RecursionLimits(
            max_cost_nusd=most,
            max_depth=self.max_depth,
            max_children=self.max_children,
            max_calls=self.max_calls,
        )


def read_answers(given: Iterable[str]) -> dict[str, str]:
    """Return the answers by frame path. Raises `OptionError` unless each is `FRAME=TEXT`."""
    answers = {}
    for one in given:
        frame, equals, text = (part.strip() for part in one.partition("="))
        if not (frame and equals and text):
            raise OptionError("--answer", repr(one), "FRAME=TEXT, such as 3=UTC")
        answers[frame] = text
    return answers


def answer_question(
    options: AskOptions, question: str, *, trace_id: str, answers: Mapping[str, str], as_json: bool
) -> ExitCode:
    """Ask a question or resume a trace, print the outcome, and return the exit code."""
    try:
        outcome = run_async(_answered(options, question, trace_id, answers))
    except (AmbiguousIdError, ResumeError) as e:
        stop(ExitCode.FOUND_WRONG, str(e))
    if as_json:
        output.show_json(_values(outcome))
    else:
        output.print_table(*_drawn(outcome, options))
    match outcome:
        case Concluded():
            return ExitCode.DONE
        case Paused():
            return ExitCode.PAUSED
        case Unfinished():
            return ExitCode.FOUND_WRONG
        case _:
            assert_never(outcome)


async def _answered(
    options: AskOptions, question: str, trace_id: str, answers: Mapping[str, str]
) -> RecursionOutcome:
    settings, limits = start(), options.limits
    async with aclosing(port_adapters.records_of(options.log)) as records:
        trace_id = await full_id(records, trace_id, of="trace")
        known = _beginning(trace_id, await records.trace(trace_id)) if trace_id else None
        config, model = await asyncio.to_thread(_configured, options, known)
        configure_logging(settings.log_level, settings.log_format, config.redaction)
        tables = Tables(*await asyncio.to_thread(lambda: tables_of(config, factories_of(config))))
        now = SystemClock().now()
        row = model_row(tables, LLMProvider(next(iter(config.providers))), model, now=now)
        tenants = config.tenant_ids
        tenant = (tenants[0] if len(tenants) == 1 else DEFAULT_TENANT) if known is None else known.tenant
        patience = providers.patience_of(config.providers).get(row.provider)
        as_of = now if config.mode == "backtest" else None  # because a backtest has no current time
        asked = _Asked(row, tables, tenant, await evidence_of(records, tenant), patience, as_of)
        async with _gateway_on(options, config, tables, records, trace_id) as gateway:
            on_record = partial(records.trace, tenant=tenant)
            recursion = Recursion(gateway, on_record, limits, asked.builder, cost_bound=asked.cost_bound)
            if trace_id:
                return await recursion.resume(trace_id, answers, by=user_name())
            _say_bound(asked.bound_of(question), limits.max_cost_nusd)
            return await recursion.run(question)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The model, tenant, evidence, retries and as-of time of the calls of a question."""

    row: Capability
    tables: Tables
    tenant: str
    evidence: Mapping[str, Any]
    patience: RetryPolicy | None
    as_of: datetime | None

    def builder(self) -> EnvelopeBuilder:
        """Return a builder for the envelopes of a tree."""
        builder = EnvelopeBuilder().for_general().with_agent(AGENT).with_tenant(self.tenant)
        builder = builder.with_provider(self.row.provider, self.row.model).with_subject(SUBJECT)
        builder = builder.with_budget(max_output_tokens=ANSWER_TOKENS)
        if self.as_of is not None:
            builder = builder.with_as_of(self.as_of)
        if self.patience is not None:
            builder = builder.with_retry_policy(self.patience)
        for source, content in self.evidence.items():
            builder = builder.add_evidence(source, content)
        return builder.with_output_policy(output_policy(mode="reask"))

    def cost_bound(self, envelope: LLMEnvelope) -> int:
        """Return the maximum cost of an attempt in nano-dollars, as the gate reserves it."""
        request = first_request(envelope, self.row, attempt=1)
        return bound(request, self.row, self.tables.prices, at=envelope.created_at).nusd

    def bound_of(self, question: str) -> int:
        """Return the maximum cost of the first call of a question in nano-dollars."""
        builder = self.builder().with_instructions(INSTRUCTIONS[ASK]).with_context({"question": question})
        return self.cost_bound(builder.with_output_schema(ASK_SCHEMA).build())


class _Beginning(NamedTuple):
    """The first model of a recorded tree, its tenant, and whether it was asked over a bus."""

    provider: str
    model: str
    tenant: str
    is_remote: bool


def _beginning(trace_id: str, on_record: Sequence[Record]) -> _Beginning | None:
    """Return how a tree began, or None without a sent call. Raises `ResumeError` without a question."""
    if FrameRecords(on_record).root is None:
        raise ResumeError(trace_id, "has no recorded question. Allowed: a trace that has one")
    for one in on_record:
        if isinstance(one, Event) and isinstance(sent := GOVERNANCE.of(one), AttemptDispatched):
            return _Beginning(sent.provider, sent.model, one.tenant_id, is_remote=False)
        if (asked := envelope_of(one)) is not None:
            is_remote = isinstance(one, Event)
            return _Beginning(asked.provider, asked.model, asked.tenant_id, is_remote)
    return None


def _bus_of(config: PlatformConfig, options: AskOptions, known: _Beginning | None) -> BusConfig:
    """Return the bus for the calls of a question. Raises `OptionError` if a trace began elsewhere."""
    # A trace must resume where it began, because only the claims and the ledger there have its calls. Otherwise a call
    # could be repeated and paid twice.
    if known is None or known.is_remote is (config.bus.url is not None):
        return config.bus
    if known.is_remote:
        raise OptionError(
            "--bus", "missing, but the trace has calls on a bus", "the bus where the trace began"
        )
    if options.bus:
        was = "given, but the trace began in a local process"
        raise OptionError("--bus", was, "--resume without --bus")
    return BusConfig()


def _configured(options: AskOptions, known: _Beginning | None) -> tuple[PlatformConfig, str]:
    """Return the configuration with the provider to ask, and the model (empty for the default). Blocks.

    A resumed trace asks the model that it began with.
    """
    bus = None if options.bus is None else {"url": options.bus}
    config = load_config(options.config, flags={"bus": "--bus"}, bus=bus)
    name, model = options.provider, options.model
    if known is not None:
        name, model = known.provider, known.model
    elif not name and (named := config.models.get(EnvelopeWorkflow.GENERAL)):
        name, model = provider_and_model(named)
    name = name or LLMProvider.RULES.value
    row = config.providers.get(name)
    if row is None and name not in PROVIDERS:
        raise OptionError("--provider", repr(name), listed([*PROVIDERS, *config.providers]))
    row = row or ProviderConfig()
    if options.base_url is not None:
        row = row.model_copy(update={"base_url": options.base_url})
    is_local = row.adapter_of(name) == LLMProvider.LOCAL
    changes = {
        "providers": {name: row},
        "models": {},
        "fallback": {},
        "folder": None,
        "name": AGENT,
        "bus": _bus_of(config, options, known),
        "concurrency": 1 if is_local else config.concurrency,
    }
    return with_model(config.model_copy(update=changes), name, options.own_model), model


@asynccontextmanager
async def _gateway_on(
    options: AskOptions, config: PlatformConfig, tables: Tables, records: Records, trace_id: str
) -> AsyncGenerator[StructuredGateway]:
    """Open a gateway that records in the log: a platform with the earlier spend, or a client on a bus."""
    async with aclosing(port_adapters.log_for("paper", options.log, config=config)) as store:
        await store.open()
        if config.bus.url is None:
            if options.answers_from:
                raise OptionError(
                    "--answers-from", "given without a bus", "only with --resume of a trace on a bus"
                )
            async with Platform(config, Ports(store=store, tables=tables), rules=ASK_RULES) as platform:
                yield platform
            return
        earlier = EarlierCalls(asks_again=True)
        for record in await records.trace(trace_id) if trace_id else ():
            earlier.read(record)
        await read_elsewhere(options.answers_from, earlier)
        say(f"Workers on {without_password(config.bus.url)} make the calls.", err=True)
        async with (
            run_on_record(store, run_started(config), event_id=random_id()),
            remote_gateway(config, name=AGENT, store=store, earlier=earlier) as client,
        ):
            yield client


def _say_bound(bound_nusd: int, budget_nusd: int) -> None:
    """Print the number of calls that the budget covers at their maximum cost. Most calls cost far less."""
    if bound_nusd:
        say(
            f"A call can cost up to {lines.usd(bound_nusd)} USD. --max-cost covers {budget_nusd // bound_nusd:,} such calls.",
            err=True,
        )


def _values(outcome: RecursionOutcome) -> dict[str, Any]:
    values = {"outcome": type(outcome).__name__.lower(), **asdict(outcome)}
    if isinstance(outcome, Paused):
        values["questions"] = dict(outcome.questions)
    return {**values, "frames": values.pop("frames")}


def _drawn(outcome: RecursionOutcome, options: AskOptions) -> Iterator[RenderableType]:
    yield frame_table(outcome.frames)
    match outcome:
        case Concluded():
            yield output.heading("Answer")
            yield output.paragraph(outcome.conclusion)
        case Paused():
            yield output.heading("Paused: input required")
            for path, question in outcome.questions.items():
                yield output.paragraph(f"{path}: {question}")
            answers = " ".join(f"--answer {path}=…" for path in outcome.questions)
            yield output.command_line(f"{_resumed(outcome.trace_id, options)} {answers}")
        case Unfinished():
            yield output.heading(f"No answer: {outcome.stopped_by}")
            if outcome.detail:
                yield output.paragraph(outcome.detail)
            if outcome.stopped_by == FailureKind.UNDELIVERABLE and outcome.frames[0].state == "open":
                yield output.command_line(_resumed(outcome.trace_id, options))
        case _:
            assert_never(outcome)
    cost = sum(frame.cost_nusd for frame in outcome.frames)
    calls = sum(frame.calls for frame in outcome.frames)
    yield output.heading("Trace")
    yield output.facts([("id", outcome.trace_id), ("calls", f"{calls}"), ("cost", f"{lines.usd(cost)} USD")])


def _resumed(trace_id: str, options: AskOptions) -> str:
    """Return the command that resumes a trace. It names the bus and servers, because they are not recorded."""
    named = {"--store": options.log, "--config": options.config, "--base-url": options.base_url}
    named |= {"--bus": options.bus, "--resume": trace_id}
    return (
        f"agentic-trading ask {shlex.join(str(word) for pair in named.items() if pair[1] for word in pair)}"
    )


class AskedLog(Records, Protocol):
    """The log that a question is about."""

    async def recent(self, limit: int = 10, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        ...


async def evidence_of(log: AskedLog, tenant: str) -> Mapping[str, Any]:
    """Return the evidence in a tenant's records: daily sums, failures, and latest decisions, newest first."""
    report = await spend_report(log, "day", "agent", tenant=tenant)
    spend = [row for row in report.rows if row.key[1] != AGENT]
    calls = await log.recent(MOST_CALLS, tenant=tenant)
    failed = Counter(
        (call.envelope.agent_id, str(call.failure.category))
        for call in calls
        if call.failure is not None and call.envelope.agent_id != AGENT
    )
    chains = await newest_chains(log, 2 * MOST_DECISIONS, with_calls=True, tenant=tenant, warn=warn_once)
    decisions = [(chain, outcome) for chain, outcome in chains if chain.subject != SUBJECT]
    return {
        SPEND: {
            "rows": [
                {
                    "day": row.key[0],
                    "agent": row.key[1],
                    "calls": row.attempts,
                    "failed": row.failed,
                    "usd": lines.usd(row.cost_nusd),
                }
                for row in spend[-MOST_ROWS:]
            ],
            "older_rows_left_out": max(0, len(spend) - MOST_ROWS),
        },
        FAILURES: [
            {"agent": agent, "kind": kind, "calls": number}
            for (agent, kind), number in sorted(failed.items())
        ],
        DECISIONS: [
            {
                "time": chain.last[:19],
                "subject": chain.subject,
                "outcome": outcome,
                "usd": lines.usd(chain.cost_nusd),
            }
            for chain, outcome in decisions[:MOST_DECISIONS]
        ],
    }

"""What `ask` does: evidence of a log summed by code, a question put to a model, or to rules, and what came of it printed."""

import asyncio
import json
import shlex
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, assert_never

from rich.console import RenderableType

from agentic_trading.app import trading
from agentic_trading.app.cli.chains import newest_chains
from agentic_trading.app.cli.exits import ExitCode, say, stop
from agentic_trading.app.cli.frame_tree import frame_table
from agentic_trading.app.cli.output import (
    command_line,
    facts,
    heading,
    paragraph,
    print_table,
    show_json,
    usd,
)
from agentic_trading.app.options import MODELS, OptionError, listed, pluralize
from agentic_trading.app.providers import model_row
from agentic_trading.app.settings import configure_logging, start
from agentic_trading.client.events import RecursionLimits
from agentic_trading.client.frame_calls import ASK, INSTRUCTIONS, JOIN_SCHEMA
from agentic_trading.client.frames import FrameRecords
from agentic_trading.client.recursion import (
    Concluded,
    Paused,
    Recursion,
    RecursionOutcome,
    ResumeError,
    Unfinished,
)
from agentic_trading.client.response import ANSWER_SCHEMA
from agentic_trading.clock import SystemClock
from agentic_trading.governance.prices import bound
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import DEFAULT_TENANT, EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.limits import RetryPolicy, nusd_from_usd
from agentic_trading.llm.models import Capability
from agentic_trading.llm.store import Record, Records
from agentic_trading.platform.config import BusConfig, PlatformConfig
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.platform.provider_config import ProviderConfig, provider_and_model
from agentic_trading.platform.settings import load_config, user_name
from agentic_trading.platform.tables import Tables, factories_of, tables_of
from agentic_trading.structured.prompts import first_request

AGENT: Final = "ask"
SUBJECT: Final = "question"
"""Who asks, and what its calls are about: they are no evidence of their own."""

SPEND: Final = "spend by agent and day (UTC)"
FAILURES: Final = "failed calls by agent and kind"
DECISIONS: Final = "last decisions"

MOST_ROWS: Final = 60
MOST_DECISIONS: Final = 50
MOST_CALLS: Final = 500
"""So many of the newest calls are looked at for the kinds of their failures."""

ANSWER_TOKENS: Final = 700
PROVIDERS: Final = (LLMProvider.RULES.value, LLMProvider.SCRIPTED.value, *MODELS)
"""What `--provider` may be, beside the providers of the configuration."""


@dataclass(frozen=True, slots=True)
class AskOptions:
    """What the command line asks for. Without a `provider` it is that of the configuration's `[models]` for `general`, else the rules."""

    log: Path
    config: Path | None
    provider: str
    model: str
    base_url: str | None
    max_cost_usd: Decimal | None
    max_depth: int
    max_children: int
    max_calls: int

    @property
    def limits(self) -> RecursionLimits:
        """The limits of a new tree; raises `OptionError` for an amount that is none."""
        try:
            most = nusd_from_usd(self.max_cost_usd or Decimal(0))
        except ValueError as e:
            raise OptionError("--max-cost", self.max_cost_usd, "an amount of dollars from 0 on") from e
        return RecursionLimits(
            max_cost_nusd=most,
            max_depth=self.max_depth,
            max_children=self.max_children,
            max_calls=self.max_calls,
        )


def read_answers(given: Iterable[str]) -> dict[str, str]:
    """Return the answers to frames, by their paths; raises `OptionError` for what is not `FRAME=TEXT`."""
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
    """Ask, or go on with a trace, print what came of it, and return how the command ends."""
    try:
        outcome = asyncio.run(_answered(options, question, trace_id, answers))
    except ResumeError as e:
        stop(ExitCode.FOUND_WRONG, str(e))
    if as_json:
        show_json(_values(outcome))
    else:
        print_table(*_drawn(outcome, options))
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
    async with aclosing(trading.records_of(options.log)) as records:
        known = _first_envelope(trace_id, await records.trace(trace_id)) if trace_id else None
        config, model = await asyncio.to_thread(_configured, options, known)
        configure_logging(settings.log_level, settings.log_format, config.redaction)
        tables = Tables(*await asyncio.to_thread(lambda: tables_of(config, factories_of(config))))
        row = model_row(tables, LLMProvider(next(iter(config.providers))), model, now=SystemClock().now())
        tenants = config.tenant_ids
        tenant = (tenants[0] if len(tenants) == 1 else DEFAULT_TENANT) if known is None else known.tenant_id
        patience = trading.PATIENCE.get(config.providers[row.provider].adapter_of(row.provider))
        asked = _Asked(row, tables, tenant, await evidence_of(records, tenant), patience)
        async with _platform_on(options.log, config, tables) as platform:
            recursion = Recursion(
                platform,
                lambda trace: records.trace(trace, tenant=tenant),
                limits,
                asked.builder,
                cost_bound=asked.cost_bound,
            )
            if trace_id:
                return await recursion.resume(trace_id, answers, by=user_name())
            _say_bound(asked.bound_of(question), limits.max_cost_nusd)
            return await recursion.run(question)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Of which model, for which tenant, with what evidence is asked, and how calls are retried."""

    row: Capability
    tables: Tables
    tenant: str
    evidence: Mapping[str, Any]
    patience: RetryPolicy | None

    def builder(self) -> EnvelopeBuilder:
        """Return a builder for the envelopes of a tree."""
        builder = EnvelopeBuilder().for_general().with_agent(AGENT).with_tenant(self.tenant)
        builder = builder.with_provider(self.row.provider, self.row.model).with_subject(SUBJECT)
        builder = builder.with_budget(max_output_tokens=ANSWER_TOKENS)
        if self.patience is not None:
            builder = builder.with_retry_policy(self.patience)
        for source, content in self.evidence.items():
            builder = builder.add_evidence(source, content)
        return builder.with_output_policy(output_policy(mode="reask"))

    def cost_bound(self, envelope: LLMEnvelope) -> int:
        """Return the most that an attempt can cost, as the gate reserves it."""
        request = first_request(envelope, self.row, attempt=1)
        return bound(request, self.row, self.tables.prices, at=envelope.created_at).nusd

    def bound_of(self, question: str) -> int:
        """Return the most that asking this question can cost."""
        builder = self.builder().with_instructions(INSTRUCTIONS[ASK]).with_context({"question": question})
        return self.cost_bound(builder.with_output_schema(ANSWER_SCHEMA).build())


def _configured(options: AskOptions, known: LLMEnvelope | None) -> tuple[PlatformConfig, str]:
    """Return the configuration with the one provider that is asked, and its model, empty for the default; blocks.

    A trace that is gone on with asks the model that it began with.
    """
    config = load_config(options.config)
    name, model = options.provider, options.model
    if known is not None:
        name, model = str(known.provider), known.model
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
        "bus": BusConfig(),
        "concurrency": 1 if is_local else config.concurrency,
    }
    return config.model_copy(update=changes), model


def _first_envelope(trace_id: str, on_record: Sequence[Record]) -> LLMEnvelope | None:
    """Return the first envelope of a tree, None where no call of it has an end; raises `ResumeError` for a trace without one."""
    if FrameRecords(on_record).root is None:
        raise ResumeError(trace_id, "has no question on record; allowed is a trace that has one")
    return next((one.envelope for one in on_record if isinstance(one, LLMInteraction)), None)


@asynccontextmanager
async def _platform_on(log: Path, config: PlatformConfig, tables: Tables) -> AsyncGenerator[Platform]:
    """Give a platform that keeps its records in a log, where what was spent before is spent."""
    async with aclosing(trading.log_for("paper", log)) as store:
        await store.open()
        async with Platform(config, Ports(store=store, tables=tables), rules=ASK_RULES) as platform:
            yield platform


def _say_bound(bound_nusd: int, budget_nusd: int) -> None:
    """Say how many calls the budget covers if each costs the most that it can; as a rule it costs far less."""
    if bound_nusd:
        say(
            f"A call may cost {usd(bound_nusd)} USD: about {budget_nusd // bound_nusd:,} at --max-cost.",
            err=True,
        )


def _values(outcome: RecursionOutcome) -> dict[str, Any]:
    values = {name: value for name, value in asdict(outcome).items() if name != "frames"}
    if isinstance(outcome, Paused):
        values["questions"] = dict(outcome.questions)
    kind = type(outcome).__name__.lower()
    return {"outcome": kind, **values, "frames": [asdict(frame) for frame in outcome.frames]}


def _drawn(outcome: RecursionOutcome, options: AskOptions) -> Iterator[RenderableType]:
    yield frame_table(outcome.frames)
    match outcome:
        case Concluded():
            yield heading("Answer")
            yield paragraph(outcome.conclusion)
        case Paused():
            yield heading("Paused: it goes on with your answer")
            for path, question in outcome.questions.items():
                yield paragraph(f"{path}: {question}")
            answers = " ".join(f"--answer {path}=…" for path in outcome.questions)
            config = [] if options.config is None else ["--config", str(options.config)]
            words = ["--store", str(options.log), *config, "--resume", outcome.trace_id]
            yield command_line(f"agentic-trading ask {shlex.join(words)} {answers}")
        case Unfinished():
            yield heading(f"No answer: {outcome.stopped_by}")
        case _:
            assert_never(outcome)
    cost = sum(frame.cost_nusd for frame in outcome.frames)
    calls = sum(frame.calls for frame in outcome.frames)
    yield heading("Trace")
    yield facts([("id", outcome.trace_id), ("calls", f"{calls}"), ("cost", f"{usd(cost)} USD")])


class AskedLog(Records, Protocol):
    """A log that is asked about."""

    async def recent(self, limit: int = 10, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return the newest attempts, newest first."""
        ...


async def evidence_of(log: AskedLog, tenant: str) -> Mapping[str, Any]:
    """Return what a tenant's records say, by source: sums of the newest days, failures, and the last decisions, newest first."""
    spend = [row for row in await log.spend("day", "agent", tenant=tenant) if row.key[1] != AGENT]
    calls = await log.recent(MOST_CALLS, tenant=tenant)
    failed = Counter(
        (call.envelope.agent_id, str(call.failure.category))
        for call in calls
        if call.failure is not None and call.envelope.agent_id != AGENT
    )
    chains = await newest_chains(log, 2 * MOST_DECISIONS, with_calls=True, tenant=tenant)
    decisions = [(chain, outcome) for chain, outcome in chains if chain.subject != SUBJECT]
    return {
        SPEND: {
            "rows": [
                {
                    "day": row.key[0],
                    "agent": row.key[1],
                    "calls": row.attempts,
                    "failed": row.failed,
                    "usd": usd(row.cost_nusd),
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
                "usd": usd(chain.cost_nusd),
            }
            for chain, outcome in decisions[:MOST_DECISIONS]
        ],
    }


def _content(envelope: LLMEnvelope, source: str) -> Any:
    found = (item.content for item in envelope.retrieved_evidence if item.source == source)
    return next(found, None)


def _rows(envelope: LLMEnvelope) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = (_content(envelope, SPEND) or {}).get("rows", [])
    return rows


def _dearest(name: str, what: str) -> Callable[[LLMEnvelope], str]:
    def answer(envelope: LLMEnvelope) -> str:
        sums = defaultdict[str, Decimal](Decimal)
        for row in _rows(envelope):
            sums[row[name]] += Decimal(row["usd"].replace(",", ""))
        if not sums:
            return "There is no call on record."
        key, most = max(sums.items(), key=lambda item: item[1])
        return f"{what} {key} spent most: {most} of {sum(sums.values())} USD."

    return answer


def _failures(envelope: LLMEnvelope) -> str:
    rows = _content(envelope, FAILURES) or []
    named = ", ".join(f"{row['agent']} {row['kind']} {row['calls']}" for row in rows)
    total = sum(row["calls"] for row in rows)
    return f"{pluralize(total, 'call')} failed: {named}." if rows else "No call failed."


PARTS: Final[Mapping[str, Callable[[LLMEnvelope], str]]] = MappingProxyType({
    "Which agent spent most?": _dearest("agent", "Agent"),
    "Which day cost most?": _dearest("day", "Day"),
    "Which calls failed?": _failures,
})
"""The questions that the rules answer by themselves; any other is split into these."""


def ask_rule(envelope: LLMEnvelope) -> str:
    """Answer one of `PARTS`, or split a question into them."""
    known = PARTS.get(envelope.context["question"])
    if known is not None:
        return json.dumps({"conclusion": known(envelope), "confidence": 1})
    tasks = [{"query": query, "priority": place} for place, query in enumerate(PARTS, start=1)]
    so_far = f"{pluralize(len(_rows(envelope)), 'row')} of spend are on record; the rules read no words."
    return json.dumps({"conclusion": so_far, "sub_tasks": tasks, "next_action": "continue"})


def join_rule(envelope: LLMEnvelope) -> str:
    """Put the findings one after the other."""
    found = [finding["conclusion"] for finding in envelope.context["findings"] if finding["conclusion"]]
    return json.dumps({"conclusion": " ".join(found)})


ASK_RULES: Final[Mapping[str, Callable[[LLMEnvelope], str]]] = MappingProxyType({
    ANSWER_SCHEMA["$id"]: ask_rule,
    JOIN_SCHEMA["$id"]: join_rule,
})
"""What the provider `rules` answers by."""

"""Our side of the call path: from `EnvelopeBuilder` to a kept interaction, around a provider that answers at once."""

import gc
import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
from typing_extensions import override

from agentic_trading.canonical import exact_value, sha256_hex
from agentic_trading.clock import SystemClock
from agentic_trading.governance.admission import Admitted
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Providers
from agentic_trading.llm.providers.offline import RecordedAnswers
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.result import Usage
from agentic_trading.llm.store import InteractionStore
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.structured.engine import Prepared, StructuredLogProbsParser, prepare
from agentic_trading.worker.attempt_result import Timing, answered_result, dispatch_event
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from agentic_trading.worker.sent_attempt import AttemptSender, ChargeWatch, RequestInFlight
from benchmarks import floor
from benchmarks.peers.question import ANSWER, CONTEXT, EVIDENCE, INSTRUCTIONS, SCHEMA
from benchmarks.peers.rounds import Round, answer_rounds, nothing, stepped, timed

AS_OF = datetime(2026, 1, 2, 2, tzinfo=UTC)
PARSED = exact_value(ANSWER.encode())  # every number digit for digit
PLENTY_NUSD = 10**15
LIMITS = (
    Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=PLENTY_NUSD, calls=10),
    Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=PLENTY_NUSD),
    Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=PLENTY_NUSD),
    Limit(ScopeKind.WORKFLOW, ANY, Window.HOUR, nusd=PLENTY_NUSD, tokens=10**12),
    Limit(ScopeKind.TENANT, ANY, Window.MONTH, nusd=PLENTY_NUSD),
)
CLOCK = SystemClock()
CAPABILITIES = Capabilities.load()
PRICES = PriceBook.load()
PARSER = StructuredLogProbsParser()


class Stub:
    """A provider that answers at once, as an adapter would: a response with its own usage."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the one answer."""
        usage = Usage(input_tokens=1_200, output_tokens=410, service_tier="standard")
        return ModelResponse(
            text=ANSWER,
            stop_reason="end_turn",
            usage=usage,
            model=request.envelope.model,
            provider_request_id="req_011CSHoEeqs5C35K2UUqR7Fy",
            provider_response_id="msg_013Zva2CMHLNnXjNJJKqJ2EF",
        )

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: it does not count."""
        return None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""


def envelope(version: str = "bench.1") -> LLMEnvelope:
    """Build the question, as an agent would: everything from scratch; another `version` is another request."""
    builder = (
        EnvelopeBuilder()
        .for_analysis()
        .with_instructions(INSTRUCTIONS, prompt_version=version)
        .with_context(CONTEXT, as_of=AS_OF)
        .with_output_schema(SCHEMA)
        .with_agent("analyst-1", "analyst")
        .with_subject("BTCUSDT", step="5m")
        .with_as_of(AS_OF)
        .with_deadline(CLOCK.now() + timedelta(minutes=5))
    )
    for source, content in EVIDENCE:
        builder.add_evidence(source, content, available_at=AS_OF)
    return builder.build()


@dataclass(frozen=True)
class Gateway:
    """The path, wired as for an application that calls it in-process."""

    store: InteractionStore
    gate: Gate = field(
        default_factory=lambda: Gate(
            ledger=MemoryLedger(LIMITS), prices=PRICES, capabilities=CAPABILITIES, clock=CLOCK, mode="live"
        )
    )
    provider: Stub = field(default_factory=Stub)
    redaction: Redaction = field(default_factory=Redaction)

    @property
    def recorder(self) -> Recorder:
        """What keeps the attempts."""
        return Recorder(self.store, redaction=self.redaction)

    def runner(
        self, runner: type[CallRunner] = CallRunner, *, recorded: RecordedAnswers | None = None
    ) -> CallRunner:
        """Return the loop over the attempts of an envelope."""
        return runner(
            RunnerDependencies(
                gate=self.gate,
                providers=Providers.every(self.provider),
                recorder=self.recorder,
                capabilities=CAPABILITIES,
                clock=CLOCK,
                checks={},
                recorded=recorded,
            )
        )


async def whole(
    store: InteractionStore,
    count: int,
    finish: Callable[[], Awaitable[None]] = nothing,
    *,
    secrets: Iterable[str] = (),
    loop: type[CallRunner] = CallRunner,
) -> Round:
    """Build, run and keep `count` calls; `secrets` are looked for in what is answered and kept."""
    runner = Gateway(store, redaction=Redaction(*secrets)).runner(loop)

    async def call() -> Any:
        return (await runner.run(envelope())).result.parsed_output

    return await timed(call, lambda answer: bool(answer == PARSED), count, finish)


async def in_memory(count: int) -> Round:
    """Keep the attempts in memory."""
    return await whole(MemoryInteractionStore(), count)


async def redacted(count: int) -> Round:
    """Do the same with keys of a vendor known."""
    return await in_a_file(
        count, secrets=[f"sk-ant-api03-{sha256_hex(b'%d' % number)}" for number in range(64)]
    )


async def in_a_file(count: int, *, secrets: Iterable[str] = ()) -> Round:
    """Keep the attempts in a log on disk, written behind; what is still to be written counts."""
    with tempfile.TemporaryDirectory() as folder:
        store = JsonFileInteractionStore(Path(folder) / "log.jsonl", durability=Durability.RELAXED)
        try:
            return await whole(store, count, store.flush, secrets=secrets)
        finally:
            await store.aclose()


class _WithoutDispatch(AttemptSender):
    """Send without the record before each call: one that was made before stands for all of them."""

    _noted: Event | None = None

    @override
    async def _note_dispatch(self, exchange: RequestInFlight) -> Event:
        request, admission = exchange.request, exchange.admission
        self._noted = self._noted or dispatch_event(request, admission, number=1, now=CLOCK.now())
        return self._noted


class WithoutDispatch(CallRunner):
    """The loop but for the record before each call."""

    def __init__(self, parts: RunnerDependencies) -> None:
        super().__init__(parts)
        watch = ChargeWatch(parts.gate.halts, None, parts.recorder)
        self._sender = _WithoutDispatch(parts.gate, parts.providers, parts.recorder, parts.clock, watch)


async def without_dispatch(count: int) -> Round:
    """Keep the attempts in memory, and no record before each call."""
    return await whole(MemoryInteractionStore(), count, loop=WithoutDispatch)


async def recorded(count: int) -> Round:
    """Find the recorded answer of a call, and read it: a step of a replay."""
    answers, asked_before = await _recording()

    async def step() -> Any:
        found = await answers.find(asked_before, 1)
        return found and found.parsed_output

    return await timed(step, lambda answer: bool(answer == PARSED), count)


async def replayed(count: int) -> Round:
    """Replay a whole call: admit it, find its recorded answer, read and check that again, and keep the attempt."""
    answers, asked_before = await _recording()
    runner = Gateway(MemoryInteractionStore()).runner(recorded=answers)

    async def call() -> Any:
        return (await runner.run(asked_before)).result.parsed_output

    return await timed(call, lambda answer: bool(answer == PARSED), count)


async def _recording() -> tuple[RecordedAnswers, LLMEnvelope]:
    """Return the recording of a call, and its question."""
    asked_before = envelope()
    attempt = await Gateway(MemoryInteractionStore()).runner().run(asked_before)
    return RecordedAnswers([attempt]), asked_before


@asynccontextmanager
async def memory_log() -> AsyncIterator[InteractionStore]:
    """Give a log in memory."""
    yield MemoryInteractionStore()


@asynccontextmanager
async def durable_log() -> AsyncIterator[InteractionStore]:
    """Give a log on disk whose records are there when they are kept, in groups."""
    with tempfile.TemporaryDirectory() as folder:
        store = JsonFileInteractionStore(Path(folder) / "log.jsonl", durability=Durability.GROUP)
        await store.open()
        try:
            yield store
        finally:
            await store.aclose()


def dispatch_way(
    log: Callable[[], AbstractAsyncContextManager[InteractionStore]],
    runner: type[CallRunner],
    tasks: int,
) -> Callable[[int], Awaitable[Round]]:
    """Return rounds of calls that go through `runner`, `tasks` at once."""

    async def way(count: int) -> Round:
        async with log() as store:
            calls = Gateway(store).runner(runner)

            async def answered(_: str) -> bool:
                return bool((await calls.run(envelope())).result.parsed_output == PARSED)

            return await stepped(answered, count, tasks, first=0)

    return way


DISPATCH_WAYS = {
    f"{dispatch}_{tasks}_{log}": dispatch_way(opened, runner, tasks)
    for dispatch, runner in (("dispatch", CallRunner), ("no_dispatch", WithoutDispatch))
    for tasks in (1, 16)
    for log, opened in (("memory", memory_log), ("durable", durable_log))
}


async def least(count: int) -> Round:
    """Do only what cannot be saved."""
    return await timed(floor.call, lambda answer: bool(answer == PARSED), count)


FEW = 5
"""Calls that go through the stages together: more would be work for the garbage collector that no single call is."""


class Stages:
    """What each stage took, timed alone over a few inputs that the stage before it made."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the CPU time of one stage."""
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start


def asked(envelope: LLMEnvelope) -> ModelRequest:
    """Choose model and parser as the runner does, and make the request."""
    prepared = prepare(envelope, CAPABILITIES.of(envelope.provider, envelope.model))
    assert isinstance(prepared, Prepared)
    return prepared.request


async def stage_by_stage(count: int) -> Round:
    """Time each stage's own functions alone, with the inputs that the stage before it made."""
    gateway, stages = Gateway(MemoryInteractionStore()), Stages()
    gc.collect()
    wrong = 0
    for _ in range(count // FEW):
        wrong += await a_few_stage_by_stage(gateway, stages)
    stages_us = {name: seconds / count * 1e6 for name, seconds in stages.seconds.items()}
    total_us = sum(stages_us.values())
    return Round(total_us, total_us, wrong, stages_us)


async def a_few_stage_by_stage(gateway: Gateway, stages: Stages) -> int:
    """Take a few calls through all stages; return how many answers were wrong."""
    gate, provider, recorder = gateway.gate, gateway.provider, gateway.recorder
    with stages.timed("build"):
        envelopes = [envelope() for _ in range(FEW)]
    with stages.timed("request"):
        requests = [asked(one) for one in envelopes]
    with stages.timed("admit"):
        admitted = [await gate.admit(request) for request in requests]
    admissions = [admission for admission in admitted if isinstance(admission, Admitted)]
    with stages.timed("dispatch on record"):
        for request, admission in zip(requests, admissions, strict=True):
            await recorder.keep_event(dispatch_event(request, admission, number=1, now=CLOCK.now()))
    with stages.timed("provider"):
        responses = [await provider.complete(request) for request in requests]
    with stages.timed("settle"):
        for admission in admissions:
            await gate.lifecycle.dispatch(admission)
        charges = [
            await gate.lifecycle.settle(admission, response.usage)
            for admission, response in zip(admissions, responses, strict=True)
        ]
    with stages.timed("read"):
        outcomes = [
            PARSER.read(response, request) for request, response in zip(requests, responses, strict=True)
        ]
    attempts = zip(requests, responses, outcomes, admissions, charges, strict=True)
    with stages.timed("result"):
        results = [
            answered_result(*attempt, Timing(CLOCK.now(), CLOCK.now(), 0.1), "final") for attempt in attempts
        ]
    with stages.timed("record"):
        for one, result in zip(envelopes, results, strict=True):
            interaction = LLMInteraction(envelope=one, result=result, stored_at=CLOCK.now())
            await recorder.keep(interaction, final=True)
    return sum(result.parsed_output != PARSED for result in results)


def main() -> None:
    """Answer rounds, with logs as a program that uses this package would set them."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        cache_logger_on_first_use=True,  # structlog's own advice for speed
    )
    answer_rounds({
        "without_dispatch": without_dispatch,
        "in_memory": in_memory,
        "in_a_file": in_a_file,
        "redacted": redacted,
        "recorded": recorded,
        "replayed": replayed,
        "least": least,
        "stage_by_stage": stage_by_stage,
        **DISPATCH_WAYS,
    })


if __name__ == "__main__":
    main()

"""Our side of the embedded gateway: whole calls through `local_gateway`, its parts alone, and where its CPU goes."""

import logging
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from decimal import Decimal
from functools import partial
from itertools import count as numbers
from itertools import repeat
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import structlog

from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.codec import envelope_message, read_envelope
from agentic_trading.bus.topic import ENVELOPES
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.llm.stores.jsonl.writer import Durability
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import Platform, local_gateway
from benchmarks import floor
from benchmarks.http_ours import provider_of
from benchmarks.http_stub import VENDORS
from benchmarks.ours import PARSED, Gateway, Stub, envelope
from benchmarks.peers.rounds import Round, answer_rounds, asked_at_once, stepped, timed

PLENTY_USD = Decimal(1_000_000)
Way = Callable[[int], Awaitable[Round]]

SAMPLED_S = 0.001
"""The CPU time between two looks at what runs."""

STEPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("build the envelope", ("EnvelopeBuilder.build", "envelope")),
    ("occurrence", ("GatewayClient._with_occurrence",)),
    ("message to the worker", ("envelope_message", "MemoryBroker.publish")),
    ("envelope from the message", ("read_envelope",)),
    ("message to the client", ("reply_message", "Recorder._publish")),
    ("interaction from the message", ("read_interaction",)),
    (
        "claim",
        ("EnvelopeHandler._claimed", "MemoryClaimStore.finish", "ActiveClaim.intend", "ActiveClaim.keep"),
    ),
    ("prepare the request", ("prepare",)),
    ("gate: admit", ("Gate.admit",)),
    ("dispatch on record", ("AttemptSender._note_dispatch",)),
    ("gate: dispatch, charge", ("SentCall.__aenter__", "SentCall.answered", "SentCall.__aexit__")),
    ("provider", ("Stub.complete",)),
    ("read the answer", ("CallContext.read",)),
    ("result", ("answered_result",)),
    ("store the attempt", ("CallRunner._keep",)),
    ("run, around these", ("CallRunner.run",)),
)
"""The steps of a call, and the functions that begin one: what a function calls is of its step, but for what begins another one."""


@asynccontextmanager
async def gateway(log: str) -> AsyncIterator[Platform]:
    """Give an embedded gateway whose log is in memory or in a durable file."""
    with tempfile.TemporaryDirectory() as folder:
        kept: dict[str, Any] = (
            {"store": MemoryInteractionStore()} if log == "memory" else {"folder": Path(folder)}
        )
        async with local_gateway(Stub(), budget_usd=PLENTY_USD, workers=16, **kept) as platform:
            yield platform


def embedded(log: str, tasks: int, *, repeated: bool = False) -> Way:
    """Return rounds of calls through the gateway, `tasks` at once; `repeated` asks the same again and again."""

    async def way(count: int) -> Round:
        async with gateway(log) as platform:
            versions = repeat("bench.1") if repeated else map("bench.{}".format, numbers())

            async def answered(_: str) -> bool:
                return await _is_answered(platform, versions)

            return await stepped(answered, count, tasks, first=0)

    return way


def over_http(vendor: str, durability: str, tasks: int) -> Way:
    """Return rounds of calls that the server at `HTTP_STUB` answers; what the log has still to write at the end counts."""

    async def way(count: int) -> Round:
        with tempfile.TemporaryDirectory() as folder:
            store = JsonFileInteractionStore(Path(folder) / "log.jsonl", durability=Durability(durability))
            await store.open()
            versions = map("bench.{}".format, numbers())
            provider, budget = provider_of(vendor), PLENTY_USD
            try:
                async with local_gateway(provider, budget_usd=budget, workers=16, store=store) as platform:
                    ask = partial(_is_answered, platform, versions)
                    return await asked_at_once(ask, tasks, count, store.flush)
            finally:
                await store.aclose()

    return way


async def _is_answered(platform: Platform, versions: Iterator[str]) -> bool:
    answer = await platform.ask(envelope(next(versions)))
    return isinstance(answer, LLMInteraction) and bool(answer.result.parsed_output == PARSED)


def runner(tasks: int) -> Way:
    """Return rounds of calls that go to the runner alone."""

    async def way(count: int) -> Round:
        calls = Gateway(MemoryInteractionStore()).runner()

        async def answered(_: str) -> bool:
            return bool((await calls.run(envelope())).result.parsed_output == PARSED)

        return await stepped(answered, count, tasks, first=0)

    return way


async def least(count: int) -> Round:
    """Do only what cannot be saved."""
    return await timed(floor.call, lambda answer: bool(answer == PARSED), count)


async def reading(count: int) -> Round:
    """Read an interaction from its bytes, without a look into it."""
    raw = (await Gateway(MemoryInteractionStore()).runner().run(envelope())).wire

    async def call() -> LLMInteraction:
        return LLMInteraction.from_wire(raw)

    return await timed(call, lambda read: read.wire == raw and read.result.parsed_output == PARSED, count)


async def hop(count: int) -> Round:
    """Carry an envelope over the broker in memory: made a message of, published, taken, read, acknowledged."""
    broker, topic = MemoryBroker(retain_acknowledged=False), ENVELOPES[EnvelopeWorkflow.ANALYSIS]
    subscription = await broker.subscribe([topic], "bench")
    built = iter([envelope() for _ in range(count)])

    async def call() -> LLMEnvelope:
        await broker.publish(topic, envelope_message(next(built), reply_to="bench"))
        delivery = await subscription.take()
        read = read_envelope(delivery)
        await subscription.ack(delivery)
        return read

    return await timed(call, lambda read: read.workflow is EnvelopeWorkflow.ANALYSIS, count)


class Samples:
    """In which step the process is, looked at after every `SAMPLED_S` of CPU time."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self._step_of: dict[CodeType, str] = {}
        self._names = {function: step for step, functions in STEPS for function in functions}

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Look for as long as the block lasts."""
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLED_S, SAMPLED_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _look(self, _number: int, frame: FrameType | None) -> None:
        while frame is not None:
            code = frame.f_code
            step = self._step_of.setdefault(code, self._names.get(code.co_qualname, ""))
            if step:
                self.seen[step] += 1
                return
            frame = frame.f_back
        self.seen["pool, slots, waits, the loop"] += 1


async def steps(count: int) -> Round:
    """Time the steps of calls in the running path, one at once."""
    samples = Samples()
    with samples.taken():
        one = await embedded("memory", 1)(count)
    looks = samples.seen.total()
    stages = {step: seen / looks * one.cpu_us for step, seen in samples.seen.items()}
    return Round(one.cpu_us, one.wall_us, one.wrong, stages)


WAYS: Mapping[str, Way] = {
    "least": least,
    "reading": reading,
    "hop": hop,
    "steps": steps,
    "repeated": embedded("memory", 1, repeated=True),
    **{f"runner_{tasks}": runner(tasks) for tasks in (1, 16)},
    **{f"{log}_{tasks}": embedded(log, tasks) for log in ("memory", "file") for tasks in (1, 16)},
    **{
        f"{vendor}_{durability}_{tasks}": over_http(vendor, durability, tasks)
        for vendor in VENDORS
        for durability in ("relaxed", "group")
        for tasks in (1, 16)
    },
}


def main() -> None:
    """Answer rounds."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        cache_logger_on_first_use=True,
    )
    answer_rounds(WAYS)


if __name__ == "__main__":
    main()

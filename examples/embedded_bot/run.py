"""A trading bot with a gateway of its own: its budget outlasts a restart, and an operator's halt stops it at once.

    python examples/embedded_bot/run.py

needs no key and no network: answers come from a script. The bot is started three times in one folder; the operator's
part is what `agentic-trading halt --store FOLDER` and `resume` do from another terminal.
"""

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from typing_extensions import override

from agentic_trading import (
    EnvelopeBuilder,
    Gateway,
    LLMInteraction,
    LLMProvider,
    ModelRequest,
    ModelResponse,
    ScriptedProvider,
    local_gateway,
)
from agentic_trading.llm import NANO
from agentic_trading.operate import halt, resume, spend

BUDGET_USD = Decimal("0.1883")
"""What all starts together may spend: twice what a call can cost at most, as one whose end is not known is charged so."""
STAND_ASIDE = "stand aside"
SCHEMA = {
    "type": "object",
    "required": ["side"],
    "properties": {"side": {"enum": ["long", "flat"]}},
    "additionalProperties": False,
}


@dataclass
class BotReport:
    """What the bot did at each bar, start by start, and what the log says that it spent, in nano-dollars."""

    starts: list[list[str]] = field(default_factory=list)
    spent_nusd: int = 0


class SlowProvider(ScriptedProvider):
    """Answers at once, but for call number `stuck`, whose answer never comes; `is_stuck` says that it waits."""

    def __init__(self, stuck: int) -> None:
        super().__init__(lambda _request: '{"side": "long"}')
        self._stuck = stuck
        self.is_stuck = asyncio.Event()

    @override
    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answer, or wait for ever."""
        response = await super().complete(request)
        if len(self.requests) == self._stuck:
            self.is_stuck.set()
            await asyncio.Event().wait()
        return response


class Bot:
    """Asks at each bar, and acts on nothing but an answer that may be acted upon."""

    def __init__(self, gateway: Gateway, done: list[str]) -> None:
        self._gateway = gateway
        self._done = done

    async def on_bar(self, close: str) -> None:
        """Ask about a bar, and note what was decided."""
        envelope = (
            EnvelopeBuilder()
            .for_analysis()
            .with_instructions("Judge the trend from the context. Answer with the side to be on.")
            .with_context({"symbol": "BTCUSDT", "close": close})
            .with_output_schema(SCHEMA)
            .with_provider(LLMProvider.SCRIPTED, "scripted-1")
            .with_budget(max_output_tokens=200)
            .with_agent("embedded-bot")
            .build()
        )
        answer = await self._gateway.ask(envelope)
        if isinstance(answer, LLMInteraction) and answer.actionable:
            self._done.append(answer.result.parsed_output["side"])
        elif answer.failure is not None:
            self._done.append(f"{STAND_ASIDE}: {answer.failure.category}")


async def trade(folder: Path) -> BotReport:
    """Start the bot three times in `folder`: halted in the middle of a call, still halted, and resumed until the budget is spent."""
    report, slow = BotReport(), SlowProvider(stuck=3)
    async with asyncio.TaskGroup() as group:
        group.create_task(_start(folder, slow, report, ["27501.5", "27510.0", "27498.2"]))
        async with asyncio.timeout(10):
            await slow.is_stuck.wait()
        await _operator(folder, halts=True)
    await _start(folder, SlowProvider(stuck=0), report, ["27490.0"])
    await _operator(folder, halts=False)
    await _start(folder, SlowProvider(stuck=0), report, [f"{27_500 + number}" for number in range(5)])
    report.spent_nusd = (await spend(folder)).total.cost_nusd
    return report


async def _start(folder: Path, provider: SlowProvider, report: BotReport, closes: list[str]) -> None:
    """Run the bot over some bars; what it did is in the report as it happens."""
    report.starts.append([])
    async with local_gateway(provider, folder=folder, budget_usd=BUDGET_USD) as gateway:
        bot = Bot(gateway, report.starts[-1])
        for close in closes:
            await bot.on_bar(close)


async def _operator(folder: Path, *, halts: bool) -> None:
    """Halt the tenant, or resume it, as the command line does."""
    if halts:
        await halt(folder, "it drifts")
    else:
        await resume(folder, "seen to")


def main() -> int:
    """Run the bot and print what it did; 1 if it did more than it may."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with TemporaryDirectory(prefix="embedded-bot-") as folder:
        report = asyncio.run(trade(Path(folder)))
    for number, (done, why) in enumerate(zip(report.starts, WHAT, strict=True), start=1):
        print(f"start {number}, {why}:")
        print(*(f"  bar {bar}  {what}" for bar, what in enumerate(done, start=1)), sep="\n")
    print(f"spent over all starts: {Decimal(report.spent_nusd) / NANO} of {BUDGET_USD} USD")
    return 0 if report.spent_nusd <= BUDGET_USD * NANO else 1


WHAT = (
    "halted by the operator while a call was in flight",
    "still halted",
    "resumed, until the budget is spent",
)

if __name__ == "__main__":
    raise SystemExit(main())

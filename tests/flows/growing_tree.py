"""A program that asks a question on a platform in a folder, and is killed in the middle of a call if that is asked for."""

import asyncio
import json
import os
import signal
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Final

from agentic_trading.cli.settings import configure_logging
from agentic_trading.client.frame_calls import JOIN
from agentic_trading.client.frames import RecursionLimits
from agentic_trading.client.recursion import Concluded, Recursion
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import Platform, PlatformConfig, Ports
from agentic_trading.platform.config import BusConfig, LedgerConfig
from tests.client.trees import asking, cost_bound, says

TRACE: Final = "the-tree"
NAME: Final = "trees"
SPLIT: Final = {"root": ("a", "b"), "a": ("a1", "a2"), "b": ("b1", "b2")}
"""Seven frames, ten calls: each of the three that are split is asked, and joined."""


def log_in(folder: Path) -> Path:
    """Return the log of the platform in `folder`."""
    return folder / NAME / "interactions.jsonl"


def sent_in(folder: Path) -> list[str]:
    """Return what was sent from `folder` by all processes, in order."""
    file = folder / "sent"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def grow(folder: str, ledger: str | None, bus: str | None, most_calls: int, dies_in: int) -> None:
    """Ask the question, print what came of it, and be killed in the call with the number `dies_in` of this process.

    With a pipe `gate` in the folder its first call waits until that was written to twice.
    """
    configure_logging("warning", "human")
    asyncio.run(_grow(_config(Path(folder), ledger, bus), most_calls, dies_in))


def ask_once(folder: str, ledger: str | None, wire: bytes) -> None:
    """Have one more call made by the platform in `folder`, and print how it failed, nothing if it did not."""
    configure_logging("warning", "human")

    async def asked() -> str:
        provider = ScriptedProvider(lambda _request: says("more"))
        async with Platform(
            _config(Path(folder), ledger), Ports(providers={"scripted": provider})
        ) as platform:
            failure = (await platform.ask(LLMEnvelope.from_wire(wire))).failure
        return str(failure.category) if failure else ""

    sys.stdout.write(asyncio.run(asked()))


def _config(folder: Path, ledger: str | None, bus: str | None = None) -> PlatformConfig:
    return PlatformConfig(folder=folder, name=NAME, bus=BusConfig(url=bus), ledger=LedgerConfig(url=ledger))


async def _grow(config: PlatformConfig, most_calls: int, dies_in: int) -> None:
    folder, made = config.folder or Path(), 0

    def line(request: ModelRequest) -> str:
        nonlocal made
        made += 1
        question, is_join = request.envelope.context["question"], request.envelope.prompt_version == JOIN
        with (folder / "sent").open("a", encoding="utf-8") as file:
            file.write(f"{'join ' if is_join else ''}{question}\n")
        if made == 1 and (gate := folder / "gate").exists():
            gate.read_text(encoding="utf-8")  # says that it is here
            gate.read_text(encoding="utf-8")  # and waits until it may go on
        if made == dies_in:
            os.kill(os.getpid(), signal.SIGKILL)
        return says(f"joined {question}") if is_join else says(f"{question}.", *SPLIT.get(question, ()))

    limits = RecursionLimits(max_cost_nusd=10**9, max_calls=most_calls)
    async with (
        Platform(config, Ports(providers={"scripted": ScriptedProvider(line)})) as platform,
        aclosing(JsonlRecords(log_in(folder))) as records,
    ):
        recursion = Recursion(platform, records.trace, limits, asking, cost_bound=cost_bound)
        outcome = await recursion.run("root", trace_id=TRACE)
    conclusion = outcome.conclusion if isinstance(outcome, Concluded) else None
    states = {frame.path: frame.state for frame in outcome.frames}
    json.dump({"conclusion": conclusion, "states": states}, sys.stdout)

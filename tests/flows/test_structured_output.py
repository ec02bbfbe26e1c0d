"""Structured answers through a whole gateway in a folder: what a model says becomes calls, frames and records, or does not."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.audit.trace import TraceTree
from agentic_trading.bus.brokers.redis.redis import redis_settings_of
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, EVENTS, REPLIES
from agentic_trading.client import parse_llm_response
from agentic_trading.client.recursion import Concluded, Recursion, RecursionOutcome
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.platform import Platform, PlatformConfig, Ports
from agentic_trading.platform.config import BusConfig, LedgerConfig
from tests.client.trees import LIMITS, TRACE, always_continuing, asking, cost_bound, model, says
from tests.redis_bus import make_topics
from tests.redis_server import RealServer

Model = Callable[[ModelRequest], Any]


async def asked(folder: Path, script: Model, **changes: Any) -> RecursionOutcome:
    """Ask a question on a platform in `folder`; `changes` are of the limits."""
    config = PlatformConfig(folder=folder, name="trees")
    return await on(config, ScriptedProvider(script), **changes)


async def on(config: PlatformConfig, provider: ScriptedProvider, **changes: Any) -> RecursionOutcome:
    limits = LIMITS.model_copy(update=changes)
    async with (
        Platform(config, Ports(providers={"scripted": provider})) as platform,
        aclosing(JsonlRecords((config.folder or Path()) / config.name / "interactions.jsonl")) as records,
    ):
        recursion = Recursion(platform, records.trace, limits, asking, cost_bound=cost_bound)
        return await recursion.run("root", trace_id=TRACE)


async def calls_in(folder: Path) -> list[LLMInteraction]:
    """Return the attempts on record, and check that every record has its cause there."""
    async with aclosing(JsonlRecords(folder / "trees" / "interactions.jsonl")) as records:
        found = await records.trace(TRACE)
    chain = TraceTree(found)
    assert chain.orphans == chain.cycles == ()
    return [one for one in found if isinstance(one, LLMInteraction)]


async def test_llm_returns_structured_output(tmp_path: Path) -> None:
    """What is checked: the answer that comes back is on record as the model wrote it, and is read as what it says."""
    outcome = await asked(tmp_path, model({"root": says("4", confidence=0.9, reasoning="2 and 2")}))

    assert isinstance(outcome, Concluded)
    assert (outcome.conclusion, outcome.confidence) == ("4", 0.9)
    [call] = await calls_in(tmp_path)
    parsed = parse_llm_response(call.result.raw_output)
    assert (parsed.is_valid, parsed.conclusion, parsed.next_action) == (True, "4", "finalize")


async def test_sub_tasks_trigger_recursion(tmp_path: Path) -> None:
    """What is checked: each sub-task is a frame below its parent's, with a call of its own on record, and is joined."""
    outcome = await asked(tmp_path, model({"root": says("to be split", "first file", "second file")}))

    assert isinstance(outcome, Concluded)
    assert len(outcome.frames) == 3
    assert max(frame.depth for frame in outcome.frames) == 1
    root, *parts, join = await calls_in(tmp_path)
    assert [one.envelope.context["question"] for one in parts] == ["first file", "second file"]
    assert {one.envelope.parent_envelope_id for one in (*parts, join)} == {root.envelope.envelope_id}
    assert {one.envelope.causation_id for one in (*parts, join)} == {root.interaction_id}
    assert outcome.conclusion == parse_llm_response(join.result.raw_output).conclusion


async def test_next_action_controls_recursion(tmp_path: Path) -> None:
    """What is checked: `finalize` and no word at all stop, whatever tasks stand beside; `continue` does not pass the limits."""
    final = says("done", "a", "b", next_action="finalize")
    silent = final.replace('"next_action": "finalize"', '"files": []')

    stopped = await asked(tmp_path / "finalize", model({"root": final}))
    unsaid = await asked(tmp_path / "absent", model({"root": silent}))
    endless = await asked(tmp_path / "continue", always_continuing(), max_depth=5, max_calls=12)

    assert len(await calls_in(tmp_path / "finalize")) == len(await calls_in(tmp_path / "absent")) == 1
    assert "next_action" not in silent
    assert [frame.skipped for frame in (*stopped.frames, *unsaid.frames)] == [2, 2]
    assert isinstance(endless, Concluded)
    assert max(frame.depth for frame in endless.frames) < 5
    assert len(await calls_in(tmp_path / "continue")) <= 12


@pytest.mark.timeout(30)  # a server of its own
async def test_workers_sharing_a_tree_pay_once(tmp_path: Path, own_redis: RealServer) -> None:
    namespace = redis_settings_of(own_redis.url).namespace
    await make_topics(own_redis.url, namespace, [*ENVELOPES.values(), EVENTS, REPLIES, DEAD_LETTERS])
    provider = ScriptedProvider(model({"root": says("to be split", "a", "b", "c")}))

    async with asyncio.TaskGroup() as group:
        trees = [
            group.create_task(
                on(
                    PlatformConfig(
                        folder=tmp_path,
                        name=name,
                        bus=BusConfig(url=own_redis.url),
                        ledger=LedgerConfig(url=own_redis.url),
                    ),
                    provider,
                )
            )
            for name in ("one", "two")
        ]

    assert len(provider.requests) == 5
    assert [type(tree.result()) for tree in trees] == [Concluded, Concluded]
    assert trees[0].result() == trees[1].result()

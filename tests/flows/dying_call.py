"""The command line program, killed at a step of a call if that is asked for.

Calls are counted from this start, from 1. While a request is on its way the stub does the killing.
"""

import functools
import os
import signal
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, ParamSpec, TypeVar

from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.brokers.redis.broker import RedisBroker
from agentic_trading.client.call_log import CallLog
from agentic_trading.desk.decisions import DecisionLog
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from tests.forked import command_line
from tests.stubs.running import page_of

P = ParamSpec("P")
T = TypeVar("T")

AFTER: Final[dict[str, tuple[Any, str]]] = {
    "before_dispatch": (MemoryLedger, "reserve"),
    "dispatched": (MemoryLedger, "dispatch"),
    "answered": (OpenAIProvider, "complete"),
    "on_record": (JsonFileInteractionStore, "store"),
    "requested": (CallLog, "request"),
    "published to kafka": (KafkaBroker, "publish"),
    "published to redis": (RedisBroker, "publish"),
    "received": (CallLog, "keep"),
    "decided": (DecisionLog, "append"),
}
"""What has just been done when the program is killed; nothing of the next step has begun."""


BEFORE: Final[dict[str, tuple[Any, str]]] = {"replied": (CallLog, "keep")}
"""What was about to be done when the program is killed."""


def dying_at(step: Callable[P, Awaitable[T]], call: int, *, is_done: bool) -> Callable[P, Awaitable[T]]:
    """Return a step that ends this process as nothing can prevent when it is taken so often, before or when it `is_done`."""
    taken = count(1)

    @functools.wraps(step)
    async def killed(*given: P.args, **named: P.kwargs) -> T:
        is_time = next(taken) == call
        if is_time and not is_done:
            os.kill(os.getpid(), signal.SIGKILL)
        done = await step(*given, **named)
        if is_time:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return killed


def prepare(step: str, call: int, stub: str) -> None:
    """See to it that this process is killed in the given call."""
    if step == "on_its_way":
        page_of(stub, f"/kill/{os.getpid()}/{call}")
        return
    owner, name = AFTER[step] if step in AFTER else BEFORE[step]
    setattr(owner, name, dying_at(getattr(owner, name), call, is_done=step in AFTER))


def run_program(words: tuple[str, ...], dying: tuple[str, int, str] | None) -> None:
    """Run the program with `words`, and be killed as `prepare` is asked for."""
    if dying is not None:
        prepare(*dying)
    command_line(*words)

"""The command line program, killed at a step of a call if that is asked for.

Calls are counted from this start, from 1. While a request is on its way the stub does the killing.
"""

import functools
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final, ParamSpec, TypeVar

from agentic_trading.app.cli.main import main
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from tests.stubs.running import page_of

P = ParamSpec("P")
T = TypeVar("T")

AFTER: Final[dict[str, tuple[Any, str]]] = {
    "before_dispatch": (MemoryLedger, "reserve"),
    "dispatched": (MemoryLedger, "dispatch"),
    "answered": (OpenAIProvider, "complete"),
    "on_record": (JsonFileInteractionStore, "store"),
}
"""What has just been done when the program is killed; nothing of the next step has begun."""


def dying_after(step: Callable[P, Awaitable[T]], call: int) -> Callable[P, Awaitable[T]]:
    """Return a step that ends this process as nothing can prevent once it has been taken so often."""
    taken = count(1)

    @functools.wraps(step)
    async def killed(*given: P.args, **named: P.kwargs) -> T:
        done = await step(*given, **named)
        if next(taken) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return killed


def prepare(step: str, call: int, stub: str) -> None:
    """See to it that this process is killed in the given call."""
    if step == "on_its_way":
        page_of(stub, f"/kill/{os.getpid()}/{call}")
        return
    owner, name = AFTER[step]
    setattr(owner, name, dying_after(getattr(owner, name), call))


def run_program(words: tuple[str, ...], dying: tuple[str, int, str] | None) -> None:
    """Run the program with `words`, and be killed as `prepare` is asked for."""
    if dying is not None:
        prepare(*dying)
    sys.argv = ["agentic-trading", *words]
    main()

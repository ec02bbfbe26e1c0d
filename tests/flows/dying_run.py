"""A program: run a session, and be killed in the middle of it, as `kill -9` does."""

import asyncio
import os
import signal
from collections.abc import Callable
from itertools import count
from typing import Any

import structlog

from agentic_trading.desk.session import trading
from agentic_trading.desk.session.report import RunProgress
from agentic_trading.desk.session.run import run_session
from agentic_trading.llm.envelope import LLMEnvelope
from tests.desk.session.asking import run_options


def die() -> None:
    """End this process as nothing can prevent."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_in(call: int, workflow: str) -> None:
    """Let the rules answer until the given call of a workflow (from 1) is under way."""
    numbers = count(1)
    rules: dict[str, Any] = trading.RULES
    for name, rule in [*rules.items()]:
        rules[name] = _deadly(rule, lambda: next(numbers) == call, workflow)


def _deadly(
    rule: Callable[[LLMEnvelope], str], is_time: Callable[[], bool], workflow: str
) -> Callable[[LLMEnvelope], str]:
    def answer(envelope: LLMEnvelope) -> str:
        if envelope.workflow == workflow and is_time():
            die()
        return rule(envelope)

    return answer


def main(asked: dict[str, Any]) -> None:
    """Run with `options`, and die at `bar`, or in `call` of `workflow`."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    if "call" in asked:
        dying_in(asked["call"], asked["workflow"])

    def on_progress(progress: RunProgress) -> None:
        if progress.bars_done >= asked.get("bar", progress.bars_done + 1):
            die()

    asyncio.run(run_session(run_options(**asked["options"]), on_progress=on_progress))

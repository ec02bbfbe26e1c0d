"""Our side of `http_server.py`: the server in a process of its own, and the gateway embedded in this one, under one configuration."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from agentic_trading.clock import SystemClock
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.platform import Platform, load_config
from agentic_trading.server import calls, chat_completions
from agentic_trading.server.api_keys import ApiKey, ApiKeyFile, new_api_key
from agentic_trading.server.fields import read_request
from benchmarks.gateways import Proxy, body_of, served
from benchmarks.http_stub import COMPLETION, MODEL
from benchmarks.peers.rounds import Round, answer_rounds, asked_at_once

DURABILITIES: Final = ("relaxed", "group")
AT_ONCE: Final = (1, 16)

SETTLES_S: Final = 0.5
"""Seconds after the last answer of a round that still count: a `relaxed` log is written then, and others work in the background."""

CONFIG: Final = """
durability = "{durability}"
concurrency = 16

[tenants.default]
budget_usd = "1000000"
window = "day"

[providers.openai]
base_url = "{url}/v1"

[[providers.openai.models]]
model = "{model}"
context_tokens = 400000
max_output_tokens = 128000
source = "the stand-in"
checked_on = 2026-11-01
price = {{ input = 250, output = 2000, service_tier = {{ default = [1, 1] }} }}
"""


def configured(folder: Path, durability: str, stream: str = "whole") -> tuple[Path, ApiKey, str]:
    """Write a configuration; return its file, an API key and the secret of the key.

    The provider's key is a variable of the environment. One of a folder is read in a thread for each call.
    """
    file = folder / "agentic-trading.toml"
    file.write_text(
        CONFIG.format(durability=durability, url=os.environ["HTTP_STUB"], model=MODEL), encoding="utf-8"
    )
    os.environ["OPENAI_API_KEY"] = "sk-bench-0123456789"
    rights = {
        "tenant": "default",
        "agent": "analyst-1",
        "models": {MODEL: f"openai/{MODEL}"},
        "stream": stream,
    }
    key, secret = new_api_key("bench", SystemClock().now(), rights)
    ApiKeyFile(folder / "api-keys.toml").add(key)
    return file, key, secret


@contextmanager
def http_server(durability: str, stream: str = "whole") -> Generator[Proxy]:
    """Run `agentic-trading serve`, with a budget and a log on disk. `stream` is that of its key."""
    with tempfile.TemporaryDirectory() as name:
        _, _, secret = configured(Path(name), durability, stream)
        program = str(Path(sys.executable).with_name("agentic-trading"))
        command = [program, "serve", "--store", "log", "--http", "127.0.0.1:{port}"]
        with served("server", Path(name), command, "/healthz") as (port, pid):
            yield Proxy(port, pid, {"authorization": f"Bearer {secret}"})


def embedded(durability: str, callers: int) -> Callable[[int], Awaitable[Round]]:
    """Return rounds of the same calls through a platform in this process: the envelope is built, and asked."""

    async def way(count: int) -> Round:
        with tempfile.TemporaryDirectory() as name:
            file, key, _ = configured(Path(name), durability)
            # An embedded agent has its request as an object: it is not read from the bytes of a client.
            asked = iter([
                read_request(chat_completions.TABLE, json.dumps(body_of(number)).encode())
                for number in range(count + callers)
            ])
            clock = SystemClock()
            async with Platform(load_config(file, folder=Path(name) / "log")) as gateway:

                async def is_right() -> bool:
                    envelope = calls.request_envelope(next(asked), key, {}, trace="", now=clock.now())
                    answer = await gateway.ask(envelope)
                    return isinstance(answer, LLMInteraction) and answer.result.raw_output == EXPECTED

                return await asked_at_once(is_right, callers, count, partial(asyncio.sleep, SETTLES_S))

    return way


EXPECTED: Final = json.dumps(COMPLETION)

WAYS: Final = {
    f"{durability}_{callers}": embedded(durability, callers)
    for durability in DURABILITIES
    for callers in AT_ONCE
}

if __name__ == "__main__":
    answer_rounds(WAYS)

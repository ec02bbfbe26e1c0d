"""Other gateways for `embedded.py`, each as it comes, without a budget, on the same server: what they take is the CPU of their own process."""

import asyncio
import json
import os
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import aiohttp

from agentic_trading.services.local import HOST, Daemon, ServiceError, free_port
from benchmarks.fleet import cpu_of
from benchmarks.fleet_peers import answer
from benchmarks.http_stub import MODEL
from benchmarks.peers.contender import LEAN, Contender, Measured, UnavailableError, environment, node_modules
from benchmarks.peers.question import ANSWER, INSTRUCTIONS, QUESTION
from benchmarks.peers.rounds import Round, stepped

STARTS_WITHIN_S: Final = 90.0
BODY: Final[Mapping[str, Any]] = {
    "model": MODEL,
    "max_tokens": 4_096,
    "messages": [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": QUESTION}],
}


def body_of(number: int) -> dict[str, Any]:
    """Return the body of one of many questions that are equal but for a number."""
    system, question = BODY["messages"]
    return {**BODY, "messages": [system, {**question, "content": f"{QUESTION}\n\nQuestion {number}."}]}


@dataclass(frozen=True)
class Proxy:
    """A gateway in a process of its own: a round's CPU is that of the process and its children, without their caller's."""

    port: int
    pid: int
    headers: Mapping[str, str] = field(default_factory=dict)

    def round(self, way: str, count: int) -> Round:
        """Ask `count` times, as many at once as the end of `way` says."""
        try:
            return asyncio.run(self._round(int(way.rpartition("_")[2]), count))
        except ExceptionGroup as e:
            raise UnavailableError(f"it broke: {e.exceptions[0]!r:.100}") from e

    async def _round(self, callers: int, count: int) -> Round:
        url = f"http://{HOST}:{self.port}/v1/chat/completions"
        async with aiohttp.ClientSession(headers=self.headers) as session:

            async def is_right(_: str) -> bool:
                async with session.post(url, json=BODY) as answered:
                    return bool((await answered.json())["choices"][0]["message"]["content"] == ANSWER)

            await stepped(is_right, callers, callers, first=0)
            before_ms = cpu_of(self.pid, with_children=True)
            one = await stepped(is_right, count, callers, first=0)
            used_ms = cpu_of(self.pid, with_children=True) - before_ms
        return Round(used_ms / count * 1e3, one.wall_us, one.wrong)


@contextmanager
def litellm_proxy() -> Generator[Proxy]:
    """Run LiteLLM's proxy, without a database."""
    params = {"model": f"openai/{MODEL}", "api_base": os.environ["HTTP_STUB"] + "/v1", "api_key": "sk-bench"}
    key = "sk-" + token_hex(32)  # it does not start without one, or with a weak one
    config = {
        "general_settings": {"master_key": key},
        "model_list": [{"model_name": MODEL, "litellm_params": params}],
        "litellm_settings": {"telemetry": False},
    }
    program = environment("litellm_proxy").parent / "litellm"
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "config.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")  # which is YAML, too
        command = [str(program), "--config", str(path), "--host", HOST, "--port", "{port}"]
        with served("litellm", Path(name), command, "/health/liveliness") as (port, pid):
            yield Proxy(port, pid, {"authorization": f"Bearer {key}"})


@contextmanager
def portkey() -> Generator[Proxy]:
    """Run Portkey's gateway."""
    program = node_modules("portkey") / "@portkey-ai" / "gateway" / "build" / "start-server.js"
    headers = {
        "authorization": "Bearer sk-bench",
        "x-portkey-provider": "openai",
        "x-portkey-custom-host": os.environ["HTTP_STUB"] + "/v1",
    }
    with tempfile.TemporaryDirectory() as name:
        command = ["env", "NODE_ENV=production", "node", str(program), "--headless", "--port={port}"]
        with served("portkey", Path(name), command, "/") as (port, pid):
            yield Proxy(port, pid, headers)


def tensorzero() -> AbstractContextManager[Measured]:
    """Return TensorZero, embedded into a process of Python."""
    return Contender("benchmarks.peers.tensorzero.gateway", environment("tensorzero"))


def bifrost() -> AbstractContextManager[Measured]:
    """Raise `UnavailableError`."""
    raise UnavailableError("not measured: its npm package holds no gateway, it loads one from elsewhere")


@contextmanager
def served(name: str, folder: Path, command: Sequence[str], path: str) -> Generator[tuple[int, int]]:
    """Run `command`, which names its `{port}`, until `path` answers; give the port and the process id."""
    port = free_port()
    server = Daemon(name, folder, ends_with_starter=True)

    def is_ready(_: str) -> bool:
        return answer(port, "GET", path)[0] == HTTPStatus.OK

    os.environ.update(LEAN)
    try:
        server.start([part.format(port=port) for part in command], is_ready, within_s=STARTS_WITHIN_S)
    except ServiceError as e:
        raise UnavailableError(f"it does not start: {' '.join(str(e).split())[-100:]}") from e
    try:
        yield port, server.pid or 0
    finally:
        server.kill()


GATEWAYS: Final[Mapping[str, tuple[str, Callable[[], AbstractContextManager[Measured]]]]] = {
    "litellm_proxy": ("LiteLLM proxy", litellm_proxy),
    "portkey": ("Portkey", portkey),
    "tensorzero": ("TensorZero, embedded", tensorzero),
    "bifrost": ("Bifrost", bifrost),
}
"""Titles, and what starts each; raises `UnavailableError` where it cannot run here."""

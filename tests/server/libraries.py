"""Libraries of agents, each in an environment of its own: what their calls return, and which API they use."""

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.peers.contender import PEERS, Program, UnavailableError, environment, peer, versions

_ORDER: Final = {"symbol": "NVDA", "size": 1.5}
_ADVICE: Final = {"direction": "up", "strength": 0.8}
_LANGCHAIN: Final[Mapping[str, Any]] = {
    "answer": "text",
    "awaited": "text",
    "streamed": "text",
    "structured": _ADVICE,
    "forced": _ORDER,
    "called": ["order", _ORDER, "text"],
    "streamed_tool": ["order", _ORDER],
    "agent": [4, "text"],
}
_PYDANTIC_AI: Final[Mapping[str, Any]] = {
    "answer": "text",
    "streamed": "text",
    "structured": _ADVICE,
    "forced": _ORDER,
    "called": [4, "text"],
}
_APIS: Final = ("chat", "responses", "messages")

EXPECTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "langchain_client": {f"{api} {step}": value for api in _APIS for step, value in _LANGCHAIN.items()},
    "pydantic_ai_client": {
        f"{api} {step}": value
        for api in _APIS
        for step, value in _PYDANTIC_AI.items()
        if (api, step) != ("messages", "structured")
    },
    "instructor_client": {
        "tools structured": _ORDER,
        "tools streamed": _ORDER,
        "json_schema structured": _ADVICE,
        "json_schema streamed": _ADVICE,
        "responses_tools structured": _ORDER,
        "responses_tools streamed": _ORDER,
        "messages_tools structured": _ORDER,
        "messages_tools streamed": _ORDER,
        "awaited_tools awaited": _ORDER,
    },
}
"""The result of each way of a library. `text` is an answer of the stub."""


def plain_ways(library: str) -> list[str]:
    """Return the ways of a library that make one call: its first one over each API, and the streamed one."""
    steps = {"structured", "streamed"} if library == "instructor_client" else {"answer", "streamed"}
    return [way for way in EXPECTED[library] if way.split()[1] in steps]


def api_of(way: str) -> str:
    """Return the API that a way uses."""
    return next((api for api in ("responses", "messages") if way.startswith(api)), "chat_completions")


def python_of(library: str) -> Path:
    """Return the Python of the environment of a library. Skips the test, with the reason, if it cannot be installed."""
    # Tests of the same library run at the same time, and only one of them installs it.
    with (PEERS / library / "requirements.txt").open() as requirements:
        fcntl.flock(requirements, fcntl.LOCK_EX)
        try:
            return environment(library)
        except UnavailableError as e:
            pytest.skip(f"{library} ({versions(library)}) is not tested: it {e.reason}")


@contextmanager
def library(name: str) -> Iterator[Program]:
    """Run a library in its environment."""
    python_of(name)
    with peer(name) as program:
        yield program

"""The watch of an agent's code: what a garbage collection runs is no use of the agent."""

import gc
import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentic_trading.desk.session.outside import OutsideWatch, OwnCode

MODULE = """
import gc
import time


def collect():
    gc.collect()


def now():
    return time.time()
"""


@pytest.fixture
def own(tmp_path: Path) -> tuple[ModuleType, OwnCode]:
    """Return a module of an agent, and its code."""
    path = tmp_path / "collecting.py"
    path.write_text(MODULE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("collecting", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, OwnCode(path, "collecting")


@contextmanager
def reading_a_clock() -> Iterator[list[float]]:
    """Read a clock at the start and the end of each collection, as test tools do."""
    read: list[float] = []

    def callback(_phase: str, _info: Any) -> None:
        read.append(time.time())  # noqa: TID251 - what the watch must not count

    gc.callbacks.append(callback)
    try:
        yield read
    finally:
        gc.callbacks.remove(callback)


class Finalized:
    """Reads a clock when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.time()  # noqa: TID251 - what the watch must not count


def test_collection_is_no_use_of_the_agent(own: tuple[ModuleType, OwnCode]) -> None:
    module, code = own
    watch = OutsideWatch(code)
    callbacks = list(gc.callbacks)

    with reading_a_clock() as read, watch.watching():
        Finalized()
        module.collect()

    assert len(read) >= 2
    assert watch.seen == {}
    assert gc.callbacks == callbacks


def test_clock_after_a_collection_is_seen(own: tuple[ModuleType, OwnCode]) -> None:
    module, code = own
    watch = OutsideWatch(code)

    with watch.watching():
        module.collect()
        module.now()

    assert [(access.what, count) for access, count in watch.of("clocks")] == [("time.time", 1)]

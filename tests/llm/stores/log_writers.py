"""Programs of a log, for processes of their own: writers, a follower, and an asker."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import aclosing, contextmanager
from itertools import count
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import orjson

from agentic_trading.llm import Event, JsonFileInteractionStore
from agentic_trading.llm.stores.jsonl.reader import START, LogReader
from agentic_trading.llm.stores.jsonl.segments import LogFiles
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.record_codec import id_of
from tests.build import event
from tests.forked import FORKS

TASKS = 4
"""Tasks of a writer, which share its commits."""

TRACE = "t-0"
"""The trace of a third of all records."""


def event_of(record_id: str) -> Event:
    """Return the event with an id: always the same one."""
    number = int(record_id.rpartition("-")[2])
    return event(id=record_id, trace_id=f"t-{number % 3}", body={"text": "x" * (number * 37 % 900)})


def write_until_killed(opens: Any, path: Path, noted: Path, name: str, options: dict[str, Any]) -> None:
    """Write records for ever, once the event `opens` is set. Append the id of each acknowledged record to `noted`."""

    async def write() -> None:
        store = JsonFileInteractionStore(path, **options)
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                group.create_task(keep(store, fd, f"{name}-{task}"))

    with _noting(noted) as fd:
        opens.set()
        asyncio.run(write())


async def keep(store: JsonFileInteractionStore, fd: int, name: str) -> None:
    """Record numbered events one after the other, and note each one that is acknowledged."""
    for number in count():
        await store.record(event_of(f"{name}-{number}"))
        os.write(fd, f"{name}-{number}\n".encode())  # a system call: a kill loses nothing of it


def write_in_lives(seen: Any, path: Path, lives: int, count: int, options: dict[str, Any]) -> None:
    """Write `count` records in each of several lives of a store. After the first one, wait for the event `seen`."""

    async def write(life: int) -> None:
        async with aclosing(JsonFileInteractionStore(path, **options)) as store, asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(store.record(event_of(f"n-{life}-{number}")))
                if number % TASKS == TASKS - 1:  # so many share a commit
                    await store.flush()

    for life in range(lives):
        asyncio.run(write(life))
        seen.wait()


def follow_logs(begins: Any, folders: Mapping[Path, Path], count: int) -> None:
    """Follow logs until each has `count` lines. Append their lines to a file for each log."""
    positions = dict.fromkeys(folders, START)
    begins.set()
    while waiting := [path for path, position in positions.items() if position.head.seq < count]:
        for path in waiting:
            reader = LogReader(path, may_be_missing=True)
            lines, positions[path] = reader.lines(positions[path], 0, None, lambda line: line.line, 100)
            with folders[path].open("ab") as file:
                file.writelines(line + b"\n" for line in lines)


def ask_logs(begins: Any, seen: Any, folders: Mapping[Path, Path], count: int) -> None:
    """Ask for the records of a trace until each log has `count` of them. Append the ids of each answer to a file.

    The event `seen` is set when each log has given an answer.
    """

    async def ask(path: Path, records: JsonlRecords) -> int:
        found = await records.trace(TRACE)
        ids = [id_of(record) for record in found]
        if found:
            assert await records.find(ids[-1]) == found[-1]
        with folders[path].open("ab") as file:
            file.write(orjson.dumps(ids) + b"\n")
        return len(ids)

    async def ask_all() -> None:
        waiting, answered = dict(folders), set[Path]()
        while waiting:
            for path in [path for path in waiting if LogFiles(path).exist()]:
                async with aclosing(JsonlRecords(path)) as records:
                    counts = [await ask(path, records) for _ in range(3)]
                answered |= {path} if counts[-1] else set()
                if counts[-1] >= count:
                    del waiting[path]
            if len(answered) == len(folders):
                seen.set()

    begins.set()
    asyncio.run(ask_all())


@contextmanager
def _noting(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def started(program: Any, *given: Any) -> ForkServerProcess:
    """Start a program in a process of its own."""
    process = FORKS.Process(target=program, args=given)
    process.start()
    return process

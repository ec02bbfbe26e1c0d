"""A worker names the part that it waits for, from its first moment on."""

import signal
import socket
import threading
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.worker_processes import worker

pytestmark = pytest.mark.timeout(120)

PARTS = [
    f"waits for {part}"
    for part in (
        "its modules and its configuration",
        "the files and adapters of its configuration",
        "its servers",
        "the files of its configuration",
        "its log",
        "the bus",
        "the ledger",
    )
]


def test_starting_worker_names_the_awaited_part(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are made, and not answered
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        words = ("--bus", url, "--ledger", url, "--provider", "rules", "--drain-s", "1")
        found, pause = list[str](), threading.Event()
        with worker(tmp_path, "w-1", *words) as process:
            while "waits for the ledger" not in found and len(found) < 3_000:
                health = process.health()
                assert (health["state"], health["ready"]) == ("starting", False)
                found.append(health["problems"]["start"])
                pause.wait(0.01)
            code = process.ends(signal.SIGTERM)

    assert found == sorted(found, key=PARTS.index)  # the first part may be ready before the first question
    assert found[-1] == "waits for the ledger"
    assert code == ExitCode.DONE

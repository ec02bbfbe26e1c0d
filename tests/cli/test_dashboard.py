"""`agentic-trading dashboard` refuses wrong options before it opens a port."""

import socket
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--store", "nowhere"), "--store is nowhere, which does not exist. Allowed: a log, a folder with"),
        (("--archive", "nowhere"), "--archive is nowhere, which does not exist"),
        (("--ledger", "http://h"), "--ledger is not the URL of a ledger. Allowed: redis://HOST:PORT"),
        (("--store", ".", "--http", "8765"), "--http is 8765, which is not HOST:PORT"),
        (("--store", ".", "--http", "0.0.0.0:0"), "--token-file is missing, and --http 0.0.0.0 is not this machine alone"),
        (("--store", ".", "--token-file", "nowhere"), "--token-file is nowhere, which cannot be read (No such file"),
        (("--store", ".", "--bus", "http://h"), "kafka://HOST:PORT"),
        ((), "--store is missing, and there is no session in"),
    ],
)  # fmt: skip
def test_wrong_option_is_refused(
    words: tuple[str, ...], message: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTIC_RUNS", str(tmp_path))

    told = command("dashboard", *words)

    assert told.code == ExitCode.BAD_INPUT
    assert message in told.err


def test_port_in_use_is_refused(command: Command, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        told = command("dashboard", "--store", tmp_path, "--http", address)

    assert told.code == ExitCode.BAD_INPUT
    assert f"--http is {address}, which cannot be used (" in told.err
    assert "Allowed: a free HOST:PORT" in told.err

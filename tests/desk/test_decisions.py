"""The decision log: lines that are in the file when they are added, and the digest of all of them."""

from hashlib import sha256
from pathlib import Path

import pytest

from agentic_trading.desk.decisions import DecisionLog
from agentic_trading.llm.errors import StoreError


async def test_appended_lines_reach_file_and_digest(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")

    await log.open()
    await log.append([b'{"a":1}', b'{"a":2}'])
    await log.append([])
    await log.append([b'{"a":3}'])

    written = log.path.read_bytes()
    assert written == b'{"a":1}\n{"a":2}\n{"a":3}\n'
    assert log.digest == sha256(written).hexdigest()


async def test_open_truncates_existing_log(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b"of another run\n")
    log = DecisionLog(path)

    await log.open()

    assert path.read_bytes() == b""
    assert log.digest == sha256(b"").hexdigest()


async def test_unwritable_log_error_names_path(tmp_path: Path) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl")
    log.path.mkdir()

    with pytest.raises(StoreError, match=r"decisions\.jsonl: cannot be written") as opening:
        await log.open()
    with pytest.raises(StoreError, match="cannot be written"):
        await log.append([b"{}"])

    assert opening.value.path == log.path

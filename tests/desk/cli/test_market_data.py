"""`data` names the shipped samples and tells what is in a source, as a run would read it."""

import hashlib
import json
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.market.samples import SAMPLES
from tests.cli.conftest import Command

ROWS = """open_time,open,high,low,close,volume
2023-03-20T00:00:00Z,100,102,99,101,5
2023-03-20T00:00:00Z,100,102,99,101,5
2023-03-20T00:10:00Z,102,104,101,103,7
"""


def test_samples_listed_with_licence(command: Command) -> None:
    drawn = command("data", "list").out
    listed = json.loads(command("data", "list", "--json").out)

    assert [sample["name"] for sample in listed] == list(SAMPLES)
    assert all(f"{name} " in drawn for name in SAMPLES)
    assert "MIT" in drawn


def test_sample_description_shows_halt(command: Command) -> None:
    told = command("data", "describe", "btcusdt-5m").out

    assert "2,576" in told
    assert "16 missing from 2023-03-24 12:40 to 2023-03-24 14:00" in told
    assert SAMPLES["btcusdt-5m"].sha256 in told
    assert "MIT" in told


def test_file_description_matches_content(command: Command) -> None:
    file = Path("abc-5m.csv")
    file.write_text(ROWS, encoding="utf-8")

    contents = json.loads(command("data", "describe", file, "--timeframe", "5m", "--json").out)

    assert (contents["symbol"], contents["rows"], contents["duplicates"]) == ("ABC", 2, 1)
    assert (contents["low"], contents["high"]) == ("99", "104")
    assert [gap["missing"] for gap in contents["gaps"]] == [1]
    assert contents["sha256"] == hashlib.sha256(ROWS.encode()).hexdigest()


def test_description_shows_unknown_licence(command: Command) -> None:
    Path("abc.csv").write_text("\n".join(ROWS.splitlines()[:2]), encoding="utf-8")

    told = " ".join(command("data", "describe", "abc.csv").out.split())

    assert "rows 1" in told
    assert "gaps none" in told
    assert "licence not known" in told


def test_unknown_name_lists_samples(command: Command) -> None:
    ended = command("data", "describe", "dogeusdt-1m")

    assert ended.code == ExitCode.BAD_INPUT
    assert "btcusdt-5m, ethusdt-5m" in ended.err


def test_describe_malformed_file_shows_position(command: Command) -> None:
    Path("abc.csv").write_text(ROWS.replace("102,99", "102,low"), encoding="utf-8")

    ended = command("data", "describe", "abc.csv", "--timeframe", "5m")

    assert ended.code == ExitCode.BAD_INPUT
    assert "abc.csv, line 2, column 'low'" in ended.err


@pytest.mark.parametrize(("bars", "told"), [(0, "which holds no bar"), (4, "which looks like bars of 6h")])
def test_describe_rejects_file_unfit_to_run(bars: int, told: str, command: Command) -> None:
    opens = [f"2023-03-20T{6 * place:02}:00:00Z" for place in range(bars)]
    rows = ["open_time,open,high,low,close,volume", *(f"{at},100,102,99,101,5" for at in opens)]
    Path("abc.csv").write_text("\n".join(rows), encoding="utf-8")

    ended = command("data", "describe", "abc.csv")

    assert ended.code == ExitCode.BAD_INPUT
    assert told in ended.err

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


def test_every_sample_is_named_with_its_licence(command: Command) -> None:
    drawn = command("data", "list").out
    listed = json.loads(command("data", "list", "--json").out)

    assert [sample["name"] for sample in listed] == list(SAMPLES)
    assert all(f"{name} " in drawn for name in SAMPLES)
    assert "MIT" in drawn


def test_a_sample_is_described_with_the_halt_that_it_holds(command: Command) -> None:
    told = command("data", "describe", "btcusdt-5m").out

    assert "2,576" in told
    assert "16 missing from 2023-03-24 12:40 to 2023-03-24 14:00" in told
    assert SAMPLES["btcusdt-5m"].sha256 in told
    assert "MIT" in told


def test_a_file_is_described_by_what_is_read_from_it(command: Command) -> None:
    file = Path("abc-5m.csv")
    file.write_text(ROWS, encoding="utf-8")

    contents = json.loads(command("data", "describe", file, "--timeframe", "5m", "--json").out)

    assert (contents["symbol"], contents["rows"], contents["duplicates"]) == ("ABC", 2, 1)
    assert (contents["low"], contents["high"]) == ("99", "104")
    assert [gap["missing"] for gap in contents["gaps"]] == [1]
    assert contents["sha256"] == hashlib.sha256(ROWS.encode()).hexdigest()


def test_what_is_not_known_of_a_file_is_said(command: Command) -> None:
    Path("abc.csv").write_text("\n".join(ROWS.splitlines()[:2]), encoding="utf-8")

    told = " ".join(command("data", "describe", "abc.csv").out.split())

    assert "rows 1" in told
    assert "gaps none" in told
    assert "licence not known" in told


def test_an_unknown_name_tells_what_can_be_described(command: Command) -> None:
    ended = command("data", "describe", "dogeusdt-1m")

    assert ended.code == ExitCode.BAD_INPUT
    assert "btcusdt-5m, ethusdt-5m" in ended.err


def test_a_malformed_file_is_named_with_line_and_column(command: Command) -> None:
    Path("abc.csv").write_text(ROWS.replace("102,99", "102,low"), encoding="utf-8")

    ended = command("data", "describe", "abc.csv")

    assert ended.code == ExitCode.BAD_INPUT
    assert "abc.csv, line 2, column 'low'" in ended.err


@pytest.mark.parametrize(("hours", "told"), [(0, "which holds no bar"), (9, "which looks like bars of 1h")])
def test_a_file_that_could_not_feed_a_run_is_refused_as_a_run_refuses_it(
    hours: int, told: str, command: Command
) -> None:
    opens = [f"2023-03-20T0{hour}:00:00Z" for hour in range(hours)]
    rows = ["open_time,open,high,low,close,volume", *(f"{at},100,102,99,101,5" for at in opens)]
    Path("abc.csv").write_text("\n".join(rows), encoding="utf-8")

    ended = command("data", "describe", "abc.csv")

    assert ended.code == ExitCode.BAD_INPUT
    assert told in ended.err

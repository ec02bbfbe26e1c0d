"""`data check` finds the faults of files with bars, by symbol, with lines and times."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command

HEADER = "open_time,open,high,low,close,volume"


def written(*rows: str, name: str = "acme.csv", header: str = HEADER) -> Path:
    path = Path(name)
    path.write_text("\n".join((header, *rows)) + "\n", encoding="utf-8")
    return path


def minutes(*values: str) -> list[str]:
    """Return one-minute bars with these values after their times."""
    return [f"2026-01-05T14:{minute:02}:00Z,{value}" for minute, value in enumerate(values)]


GOOD = "10,12,9,11,5"


def findings(command: Command, *words: object) -> dict[str, Any]:
    """Return the findings about the only symbol of a file, by kind."""
    report = json.loads(command("data", "check", *words, "--json").out)
    [symbol] = report["files"][0]["symbols"]
    return {finding["kind"]: finding for finding in symbol["findings"]}


def test_clean_file_has_no_findings(command: Command) -> None:
    ended = command("data", "check", written(*minutes(GOOD, GOOD, GOOD)))

    assert (ended.code, "No findings" in ended.out) == (ExitCode.DONE, True)
    assert "3 of 1m" in ended.out


def test_gap_is_a_warning_with_its_place(command: Command) -> None:
    rows = minutes(GOOD, GOOD, GOOD, GOOD, GOOD)
    path = written(*rows[:2], *rows[4:], minutes(*[GOOD] * 6)[5])

    gap = findings(command, path)["gap"]

    assert command("data", "check", path).code == ExitCode.DONE
    assert (gap["stops_run"], gap["count"]) == (False, 1)
    assert gap["places"] == [
        {"line": 4, "open_time": "2026-01-05T14:04:00Z", "detail": "2 missing from 2026-01-05 14:02"}
    ]


@pytest.mark.parametrize(
    ("rows", "kind", "line", "detail"),
    [
        (minutes(GOOD, "10,12,13,11,5"), "values", 3, "low 13; allowed: at most open 10 and close 11"),
        (minutes(GOOD, "10,12,9,11,-1"), "values", 3, "volume -1"),
        (minutes(GOOD, "10,12,9,x,5"), "unreadable", 3, "close x; allowed: a decimal number"),
        ([*minutes(GOOD, GOOD), minutes(GOOD, "10,12,9,12,5")[1]], "conflict", 4, "close 12; allowed: 11"),
        (list(reversed(minutes(GOOD, GOOD))), "order", 2, "newest first. Use `data convert`"),
        (
            [minutes(GOOD)[0], *minutes(*[GOOD] * 4)[2:], minutes(GOOD, GOOD)[1]],
            "order",
            5,
            "earlier than line 4",
        ),
    ],
)
def test_fault_that_stops_a_run_gives_exit_code_1(
    rows: list[str], kind: str, line: int, detail: str, command: Command
) -> None:
    path = written(*rows)

    found = findings(command, path)[kind]

    assert command("data", "check", path).code == ExitCode.FOUND_WRONG
    assert command("data", "describe", path).code == ExitCode.BAD_INPUT
    assert (found["stops_run"], found["count"], found["places"][0]["line"]) == (True, 1, line)
    assert detail in found["places"][0]["detail"]


def test_repeated_equal_bar_is_a_warning(command: Command) -> None:
    rows = minutes(GOOD, GOOD)

    found = findings(command, written(*rows, rows[1]))

    assert [(kind, each["stops_run"], each["count"]) for kind, each in found.items()] == [
        ("repeat", False, 1)
    ]


@pytest.mark.parametrize(
    ("close", "after", "split"),
    [
        (100, "50.5,51,50,50.7", "2 for 1"),
        (100, "33.0,33.5,32,33.2", "3 for 1"),
        (90, "60.2,61,59,60", "3 for 2"),
        (10, "80.3,82,79,81", "1 for 8"),
    ],
)
def test_suspected_split_is_a_warning(close: int, after: str, split: str, command: Command) -> None:
    found = findings(command, written(*minutes(f"{close},{close},{close},{close},5", f"{after},5")))

    assert found["split"]["stops_run"] is False
    assert found["split"]["places"][0]["detail"].endswith(f"as in a split of {split}")


@pytest.mark.parametrize("after", ["50,101,49,100", "57,58,56,57", "100,101,99,100"])
def test_other_moves_are_no_splits(after: str, command: Command) -> None:
    found = findings(command, written(*minutes("100,100,100,100,5", f"{after},5")))

    assert "split" not in found


@pytest.mark.parametrize(
    ("idle", "traded", "details"),
    [(9, 1, []), (10, 1, ["10 bars without volume"]), (12, 0, ["all bars without volume"])],
)
def test_stretch_without_volume_is_a_warning(
    idle: int, traded: int, details: list[str], command: Command
) -> None:
    found = findings(command, written(*minutes(*["10,12,9,11,0"] * idle, *[GOOD] * traded)))

    assert [place["detail"] for each in found.values() for place in each["places"]] == details


def test_symbols_of_a_file_are_checked_apart(command: Command) -> None:
    rows = [f"{symbol},{row}" for row in minutes(*[GOOD] * 4) for symbol in ("ACME", "GLOBEX")]
    path = written(*rows[:3], *rows[4:], header=f"symbol,{HEADER}")

    report = json.loads(command("data", "check", path, "GLOBEX=acme.csv", "--json").out)
    first, second = report["files"]

    assert [(each["symbol"], each["bars"]) for each in first["symbols"]] == [("ACME", 4), ("GLOBEX", 3)]
    assert [len(each["findings"]) for each in first["symbols"]] == [0, 1]
    assert second["symbols"] == first["symbols"][1:]


def test_rows_of_no_symbol_are_listed_with_their_lines(command: Command) -> None:
    bad = [f"0{day}/01/2026,A,{GOOD}" for day in range(1, 9)]
    path = written(f"2026-01-05,A,{GOOD}", f"2026-01-06,,{GOOD}", *bad, header=f"date,symbol,{HEADER[10:]}")

    report = json.loads(command("data", "check", path, "--json").out)
    [found] = report["files"][0]["findings"]

    assert (found["kind"], found["count"]) == ("unreadable", 9)
    assert [place["line"] for place in found["places"]] == [3, 4, 5, 6, 7]


def test_more_faults_than_are_kept_are_counted(command: Command) -> None:
    path = written(*(f"05/01/2026,{GOOD}" for _ in range(150)))

    [found] = json.loads(command("data", "check", path, "--json").out)["files"][0]["findings"]

    assert found["count"] == 150


@pytest.mark.parametrize(
    ("rows", "header", "kind", "detail"),
    [
        ([], HEADER, "no bars", "no row"),
        (["A,2026-01-05,10,12,9,11,5"], f"symbol,{HEADER}", "no bars", "rows of A"),
        (["1"], "price", "unreadable", "--columns open_time=NAME"),
    ],
)
def test_file_without_bars_stops_a_run(
    rows: list[str], header: str, kind: str, detail: str, command: Command
) -> None:
    written(*rows, header=header)

    report = json.loads(command("data", "check", "ACME=acme.csv", "--json").out)
    [found] = report["files"][0]["findings"]

    assert (report["passed"], found["kind"]) == (False, kind)
    assert detail in found["places"][0]["detail"]


def test_unknown_length_stops_a_run(command: Command) -> None:
    path = written(
        *(f"2026-01-05T{hour:02}:{minute:02}:00Z,{GOOD}" for hour, minute in ((0, 0), (1, 30), (3, 0)))
    )

    found = findings(command, path)
    stated = findings(command, path, "--timeframe", "30m")

    assert found["no length"]["places"][0]["detail"] == "looks like bars of 90m. Use --timeframe"
    assert stated["gap"]["count"] == 2


def test_damaged_file_does_not_hide_other_files(command: Command) -> None:
    Path("cut.csv.gz").write_bytes(gzip.compress(b"a" * 999)[:-9])

    ended = command("data", "check", "cut.csv.gz", written(*minutes(GOOD, GOOD)))

    assert ended.code == ExitCode.FOUND_WRONG
    assert "cut.csv.gz cannot be read" in " ".join(ended.out.split())
    assert "2 of 1m" in ended.out


def test_columns_not_read_are_listed(command: Command) -> None:
    path = written(f"2026-01-05,{GOOD},55", header=f"{HEADER},RSI")

    assert "columns not read      RSI" in command("data", "check", path).out


def test_missing_file_is_bad_input(command: Command) -> None:
    ended = command("data", "check", "nope.csv")

    assert ended.code == ExitCode.BAD_INPUT
    assert "FILE is nope.csv. Allowed: a file of bars" in ended.err


def test_gaps_are_counted_by_hours_of_exchange(command: Command) -> None:
    opens = ("26T20:00", "26T20:30", "28T14:30", "28T15:30")
    path = written(*(f"2025-11-{each}:00Z,{GOOD}" for each in opens), name="acme-30m.csv")

    gap = findings(command, path, "--calendar", "XNYS")["gap"]
    unknown = command("data", "check", path, "--calendar", "NOWHERE")

    assert findings(command, path)["gap"]["count"] == 2
    assert gap["count"] == 1
    assert gap["places"][0]["detail"] == "1 missing from 2025-11-28 15:00"
    assert unknown.code == ExitCode.BAD_INPUT
    assert "'NOWHERE': there is no calendar" in unknown.err

"""`records` lists, counts and follows the records of logs."""

import csv
import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TextIO

import pytest

from agentic_trading.cli import output
from agentic_trading.cli.exits import INTERRUPTED, ExitCode
from agentic_trading.llm.store import Record
from tests.audit.exporting import lines_of
from tests.audit.reading import call, desk, step, write
from tests.cli.conftest import Command, Ended
from tests.forked import Running, command_line, running

HOSTILE = "evil\x1b[31m\u202e\nname"

Asked = Any


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a log with the records of a desk, and a segment for each of them."""
    return write(tmp_path / "runs/first/interactions.jsonl", *desk(), segment_bytes=1)


@pytest.fixture
def both(tmp_path: Path, log: Path) -> Path:
    """Return a folder with the logs of two sessions, one of them with another tenant."""
    write(
        tmp_path / "runs/second/interactions.jsonl",
        *desk("other"),
        call(25 * 60, agent_id="analyst", model="m-1"),
    )
    return log.parents[1]


def facts(ended: Ended) -> list[dict[str, Any]]:
    assert ended.code == ExitCode.DONE, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), [1, 2, 3, 4, 5, 6]),
        (("--agent", "analyst"), [2, 6]),
        (("--agent", "analyst", "--agent", "trader"), [2, 5, 6]),
        (("--agent", "analyst, trader", "--model", "m-2"), [5, 6]),
        (("--workflow", "execution"), [5]),
        (("--model", "m-1"), [2]),
        (("--provider", "openai"), [5]),
        (("--tenant", "fund"), [1, 2, 3, 4, 5, 6]),
        (("--tenant", "fund,other"), [1, 2, 3, 4, 5, 6]),
        (("--subject", "ETHUSDT"), [4]),
        (("--kind", "interaction"), [2, 5, 6]),
        (("--verdict", "long"), [3]),
        (("--failure", "*"), [5]),
        (("--failure", "budget_exhausted", "--agent", "trader"), [5]),
        (("--trace", "chain-of-fund"), [1, 2, 3, 4]),
        (("--trace", "chain-of"), [1, 2, 3, 4]),
        (("--since", "2026-01-02T00:02", "--until", "2026-01-02T00:04Z"), [3, 4]),
        (("-S", "2026-01-03"), [6]),
        (("-U", "2026-01-02T00:01"), [1]),
        (("--where", "latency_ms > 200 AND attempt > 0"), [6]),
        (("--grep", '"action":"buy"', "--model", "m-1"), [2]),
        (("-g", "“stop”"), [6]),
        (("--grep", "assessed-fund"), [3, 4]),
        (("--caused-by", "model=m-1"), [3, 4]),
        (("--caused-by", "model=m-1,m-2", "--caused-by", "agent=analyst", "--kind", "order.filled"), [4]),
        (("--caused-by", "model=m-1", "--grep", "ETHUSDT"), [4]),
        (("--limit", "2"), [5, 6]),
        (("-n", "0", "-r"), [6, 5, 4, 3, 2, 1]),
        (("-n", "2", "--reverse"), [6, 5]),
        (("-n", "1", "--grep", "analyst"), [6]),
        (("-n", "1", "--caused-by", "model=m-1"), [4]),
        (("-r", "--caused-by", "model=m-1"), [4, 3]),
    ],
    ids=str,
)
def test_options_select_records(words: Sequence[str], found: list[int], log: Path, command: Command) -> None:
    asked = ("records", "--store", log, *words)

    assert [fact["seq"] for fact in facts(command(*asked, "-o", "json"))] == found
    lines = lines_of(log)
    assert command(*asked, "--output", "raw").out.encode() == b"".join(lines[seq - 1] for seq in found)
    if not {"-n", "--limit", "-r", "--reverse"} & {*words}:
        counted = command(*asked, "--count")
        assert (counted.out, counted.code) == (f"{len(found)}\n", ExitCode.DONE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--since", "soon"), "--since is 'soon'. Allowed: 2026-06-20, 2026-06-20T10:00Z, now, today"),
        (("--until", "24-11-2026"), "--until is '24-11-2026'. Allowed: "),
        (
            ("-S", "today", "-U", "yesterday"),
            "--until is yesterday, at or before --since today. Allowed: a later",
        ),
        (
            ("--caused-by", "m-1"),
            "--caused-by is 'm-1'. Allowed: KEY=NAMES, with one of the keys kind, tenant",
        ),
        (("--caused-by", "colour=red"), "--caused-by is 'colour=red'. Allowed: KEY=NAMES"),
        (("--count-by", "agent,colour"), "--count-by is 'colour'. Allowed: day, kind, tenant, agent"),
        (("-o", "yaml"), "--output is 'yaml'. Allowed: table, json, csv, raw"),
        (("-f", "-r"), "--follow is given with --reverse. Allowed: one of the two"),
        (("-f", "--count"), "--follow is given with --count."),
        (("-f", "--count-by", "agent"), "--follow is given with --count-by."),
        (("--count", "-n", "1"), "--count is given with --limit."),
        (("--count", "--count-by", "day"), "--count is given with --count-by."),
        (("--count-by", "day", "-o", "raw"), "--count-by is given with --output raw."),
        (
            ("--where", "colour = 'red'"),
            "the condition \"colour = 'red'\" is refused: no such column: colour",
        ),
        (("--where", "1) UNION SELECT 1 --"), "is refused"),
        (("--where", "(SELECT count(*) FROM records)"), "is refused"),
        (
            ("--store", "nowhere"),
            "--store is nowhere, where there is no log. Allowed: a log, a folder with interactions",
        ),
    ],
    ids=str,
)
def test_wrong_option_is_refused(words: Sequence[str], message: str, log: Path, command: Command) -> None:
    store = () if "--store" in words else ("--store", log)

    ended = command("records", *words, *store)

    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert message in ended.err
    assert ended.err.count("\n") == 1


def test_table_has_a_row_for_each_record(log: Path, command: Command) -> None:
    lines = [line.split("  ") for line in command("records", "--store", log).out.splitlines()]

    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["time", "agent or kind", "model", "subject", "verdict or failure", "ms", "USD"]
    assert cells[1:4] == [
        ["2026-01-02 00:00:00", "bar.closed", "BTCUSDT"],
        ["2026-01-02 00:01:00", "analyst", "m-1", "BTCUSDT", "100", "0.000000"],
        ["2026-01-02 00:02:00", "analysis.assessed", "BTCUSDT", "long"],
    ]
    assert cells[5][:4] == ["2026-01-02 00:04:00", "trader", "m-2", "budget_exhausted"]
    assert len(cells) == 7


@pytest.mark.parametrize(("width", "has_model"), [(80, False), (120, True)])
def test_narrow_table_leaves_out_columns(
    width: int, has_model: object, log: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "WIDTH_OF_A_PIPE", width)

    lines = command("records", "--store", log).out.splitlines()

    assert len(lines) == 7
    assert max(map(len, lines)) <= width
    assert ("m-1" in lines[2].split()) == has_model


def test_csv_has_a_header_and_every_field(log: Path, command: Command) -> None:
    fields = facts(command("records", "--store", log, "-o", "json", "-n", 2))

    rows = list(csv.DictReader(io.StringIO(command("records", "--store", log, "-o", "csv", "-n", 2).out)))

    plain = {True: "true", False: "false"}
    assert rows == [
        {
            name: plain.get(value, str(value)) if isinstance(value, bool) else str(value)
            for name, value in one.items()
        }
        for one in fields
    ]
    assert (rows[0]["time"], rows[0]["log"]) == ("2026-01-02T00:04:00Z", str(log))


def test_hostile_names_are_escaped(tmp_path: Path, command: Command) -> None:
    log = write(tmp_path / "interactions.jsonl", step("bar.closed", body={"symbol": HOSTILE}))

    for form in ("table", "json", "csv"):
        ended = command("records", "--store", log, "-o", form)
        assert "name" in ended.out
        assert not {"\x1b", "\u202e"} & {*ended.out}
        assert len(ended.out.splitlines()) == (1 if form == "json" else 2)
    [fact] = facts(command("records", "--store", log, "-o", "json"))
    assert fact["subject"] == HOSTILE


@pytest.mark.parametrize("more", [(), ("--grep", "agent"), ("--where", "seq > 0")], ids=str)
def test_sums_are_printed_in_every_form(more: Sequence[str], log: Path, command: Command) -> None:
    asked = ("records", "--store", log, "--kind", "interaction", "--count-by", "agent,day", *more)

    drawn = [line.split() for line in command(*asked).out.splitlines()]
    sums = facts(command(*asked, "-o", "json"))
    rows = list(csv.reader(io.StringIO(command(*asked, "-o", "csv").out)))

    assert drawn[1] == ["analyst", "2026-01-02", "1", "0", "100", "20", "0.000000"]
    assert sums[0] == {
        "agent": "analyst", "day": "2026-01-02", "records": 1, "failed": 0, "input_tokens": 100, "output_tokens": 20,
        "cost_nusd": 7,
    }  # fmt: skip
    assert [list(map(str, one.values())) for one in sums] == rows[1:]
    assert (len(drawn), len(sums), rows[0]) == (4, 3, list(sums[0]))


@pytest.mark.parametrize("form", ["table", "json", "csv", "raw"])
def test_unknown_name_suggests_names(form: str, log: Path, command: Command) -> None:
    ended = command(
        "records", "--store", log, "--agent", "analist", "--caused-by", "kind=bar.close", "-o", form
    )

    assert (ended.code, ended.out) == (ExitCode.DONE, "")
    assert ended.err.splitlines() == [
        "No record is selected.",
        "Note: no record has the kind 'bar.close'. The nearest: bar.closed, order.filled, analysis.assessed.",
        "Note: no record has the agent 'analist'. The nearest: analyst, trader.",
    ]


def test_unknown_name_without_known_names_is_noted(tmp_path: Path, command: Command) -> None:
    log = write(tmp_path / "interactions.jsonl", step("bar.closed"))

    ended = command("records", "--store", log, "--agent", "analyst", "--count")

    assert ended.out == "0\n"
    assert "Note: no record has the agent 'analyst'. No record has a agent." in ended.err


def test_unknown_tenant_is_noted_without_a_hint(log: Path, command: Command) -> None:
    ended = command("records", "--store", log, "--tenant", "nobody", "--count")

    assert ended.err.splitlines() == ["No record is selected.", "Note: no record has the tenant 'nobody'."]


def test_known_names_without_records_are_not_noted(log: Path, command: Command) -> None:
    ended = command("records", "--store", log, "--agent", "trader", "--model", "m-1", "--kind", "*")

    assert (ended.out, ended.err) == ("", "No record is selected.\n")


def test_several_logs_are_read_by_time(both: Path, command: Command) -> None:
    named = [word for name in ("first", "second") for word in ("--store", both / name)]

    by_folder = facts(command("records", "--store", both, "-o", "json"))
    by_name = facts(command("records", *named, "-o", "json"))
    drawn = command("records", "--store", both, "-n", 3).out.splitlines()

    assert by_folder == by_name
    assert [(Path(fact["log"]).parent.name, fact["seq"]) for fact in by_folder[:4]] == [
        ("first", 1), ("second", 1), ("first", 2), ("second", 2),
    ]  # fmt: skip
    assert len(by_folder) == 13
    assert [line.split()[2] for line in drawn[1:]] == ["first", "second", "second"]


def test_session_by_default_is_the_newest(
    both: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_RUNS", str(both))
    by_age = command("records", "--count")
    monkeypatch.setenv("AGENTIC_STORE", str(both))

    assert (by_age.out, command("records", "--count").out) == ("7\n", "13\n")


@pytest.mark.parametrize(
    "words",
    [
        (), ("--where", "tenant = 'other' OR 1"), ("--where", "tenant LIKE '%'"), ("--grep", "a"),
        ("--caused-by", "kind=*"), ("--count-by", "tenant"), ("--tenant", "fund"), ("--trace", "chain-of"), ("-o", "raw"),
    ],
    ids=str,
)  # fmt: skip
def test_tenant_sees_own_records_only(words: Sequence[str], both: Path, command: Command) -> None:
    """The answer is to the byte that of the folder without the other tenant's records."""
    asked = ("records", "--tenant", "fund", *words)

    among = command(*asked, "--store", both, "-o", "raw" if "raw" in words else "csv")
    alone = command(*asked, "--store", both / "first", "-o", "raw" if "raw" in words else "csv")

    assert (among.code, among.out) == (ExitCode.DONE, alone.out)
    assert alone.out
    assert "other" not in among.out


def test_tenants_with_commas_do_not_widen_a_condition(both: Path, command: Command) -> None:
    write(both / "third/interactions.jsonl", *desk("third"))

    found = facts(
        command("records", "--store", both, "--tenant", "fund,other", "--where", "1 OR 1", "-o", "json")
    )

    assert {fact["tenant"] for fact in found} == {"fund", "other"}


def test_damaged_end_is_a_warning(tmp_path: Path, command: Command) -> None:
    log = write(tmp_path / "interactions.jsonl", step("bar.closed"))
    with log.open("ab") as file:
        file.write(b'{"half')

    ended = command("records", "--store", log, "--count")

    assert (ended.code, ended.out) == (ExitCode.DONE, "1\n")
    assert "Warning: " in ended.err


def test_ambiguous_trace_is_refused(both: Path, command: Command) -> None:
    ended = command("records", "--store", both, "--trace", "chain-of")

    assert ended.code == ExitCode.FOUND_WRONG
    assert "several ids start with 'chain-of': chain-of-fund, chain-of-other" in ended.err


def many(count: int) -> list[Record]:
    return [step("bar.closed", number, id=f"bar-{number}") for number in range(count)]


@contextmanager
def following(folder: Path, *words: object) -> Iterator[tuple[Running, TextIO]]:
    """Run `records` while the block runs, and yield the program with its output. Its errors are in `folder`."""
    out = folder / "out"
    os.mkfifo(out)
    streams = {1: out, 2: folder / "err"}
    with (
        running(command_line, "records", *map(str, words), streams=streams, cwd=folder) as program,
        out.open(encoding="utf-8") as lines,
    ):
        yield program, lines


def on_terminal(folder: Path, *words: str) -> str:
    """Return what a command prints on a terminal."""
    ours, theirs = pty.openpty()
    terminal = Path(os.ttyname(theirs))
    drawn = []
    with running(command_line, *words, streams={1: terminal, 2: terminal}, cwd=folder) as program:
        while ours in wait([ours, program.process.sentinel]):
            drawn.append(os.read(ours, 65536))
    os.close(theirs)
    drawn.extend(iter(lambda: _read(ours), b""))
    os.close(ours)
    return b"".join(drawn).decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has closed it
        return b""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("words", "count", "note"),
    [
        ((), 50, "50 of 60 records. -n 0 shows all."),
        (("--grep", "bar"), 50, "The 50 newest records. -n 0 shows all."),
        (("-n", "0"), 60, ""),
        (("-n", "55"), 55, ""),
    ],
    ids=str,
)
def test_terminal_shows_the_newest_records(
    words: Sequence[str], count: int, note: str, tmp_path: Path
) -> None:
    log = write(tmp_path / "interactions.jsonl", *many(60))

    drawn = on_terminal(tmp_path, "records", "--store", str(log), "-o", "json", *words)

    assert drawn.count('"kind":"bar.closed"') == count
    assert [line for line in drawn.splitlines() if "-n 0" in line] == ([note] if note else [])


FOLLOWED = """
import asyncio, sys
from contextlib import aclosing
from pathlib import Path
from agentic_trading.llm import JsonFileInteractionStore
from tests.audit.reading import call, step

async def main():
    async with aclosing(JsonFileInteractionStore(Path(sys.argv[1]), segment_bytes=1)) as store:
        for number in range(30):
            await store.record(step("bar.closed", number, id=f"new-{number}"))
            await store.store(call(number, agent_id="new"))

asyncio.run(main())
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("limit", "stop"), [((), signal.SIGINT), (("-n", "2"), signal.SIGTERM)], ids=str)
def test_follow_prints_new_records_until_interrupted(
    limit: Sequence[str], stop: signal.Signals, tmp_path: Path, log: Path
) -> None:
    """Another process writes a segment for each record. A log beside it stays as it is."""
    other = write(log.parents[1] / "second/interactions.jsonl", step("bar.closed"))
    before = 2 if limit else 3
    words = ("--store", log.parents[1], "--kind", "bar.closed,order.filled", "-f", "-o", "json", *limit)

    with following(tmp_path, *words) as (program, lines):
        shown = [json.loads(lines.readline()) for _ in range(before)]
        subprocess.run([sys.executable, "-c", FOLLOWED, log], check=True)
        news = [json.loads(lines.readline()) for _ in range(30)]
        program.send_signal(stop)
        code, rest = program.wait(), lines.read()

    assert {fact["log"] for fact in shown} <= {str(log), str(other)}
    assert [fact["seq"] for fact in news] == [7 + 2 * number for number in range(30)]
    assert (rest, code) == ("", ExitCode.INTERRUPTED)
    assert (tmp_path / "err").read_text() == f"{INTERRUPTED}\n"


@pytest.mark.timeout(60)
def test_follow_keeps_columns_in_line(tmp_path: Path, log: Path) -> None:
    with following(tmp_path, "--store", log, "-n", 1, "-f") as (_, lines):
        head = [lines.readline() for _ in range(2)]
        write(log, call(0, agent_id="a", model="m", subject="S"), call(0, agent_id="b", model="m"))
        news = [lines.readline() for _ in range(2)]

    assert head[0].split()[0] == "time"
    assert [line.index("0.000") for line in news] == [head[1].index("0.000")] * 2


@pytest.mark.parametrize("words", [("records", "--store"), ("trace", "list", "--store"), ("audit", "verify")])
def test_copy_without_the_active_segment_is_a_log(words: Sequence[str], log: Path, command: Command) -> None:
    log.unlink()

    for place in (log, log.parent):
        ended = command(*words, place)
        assert ended.code == ExitCode.DONE, ended.err


def test_raw_lines_steer_no_terminal(tmp_path: Path) -> None:
    log = write(tmp_path / "interactions.jsonl", step("bar.closed", body={"symbol": HOSTILE}))

    drawn = on_terminal(tmp_path, "records", "--store", str(log), "-o", "raw")

    assert not {"\x1b", "\u202e"} & {*drawn}
    assert json.loads(drawn)["body"]["symbol"] == HOSTILE

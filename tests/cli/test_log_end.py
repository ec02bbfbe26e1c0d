"""A log that was cut off or changed, and bars that were changed: each of the four readers finds it, and says where."""

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Final

import orjson
import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.main import main
from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.llm.event import RunStarted
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.runs import run_on_record
from agentic_trading.llm.store import LATEST_RUNS, ChainHead
from agentic_trading.llm.stores.record_codec import write_line
from tests.cli.conftest import Command, Ended
from tests.logging_kept import logging_kept

BARS: Final = 60
FLAGS: Final = ("--data", "btcusdt-5m", "--bars", str(BARS))
READERS: Final[Mapping[str, Callable[[Path], tuple[object, ...]]]] = {
    "audit": lambda folder: ("audit", "verify", folder),
    "replay": lambda folder: ("replay", "run", folder),
    "resume": lambda folder: ("run", "--data", "btcusdt-5m", "--bars", BARS + 5, "--resume", "--out", folder),
    "spend": lambda folder: ("spend", "--store", folder),
    "trace": lambda folder: ("trace", "list", "--store", folder),
}
CODES: Final = {
    "audit": ExitCode.FOUND_WRONG,
    "replay": ExitCode.LOG_UNUSABLE,
    "resume": ExitCode.LOG_UNUSABLE,
    "spend": ExitCode.DONE,
    "trace": ExitCode.DONE,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a small session; tests change only copies of it."""
    folder = tmp_path_factory.mktemp("small") / "session"
    with logging_kept(), pytest.raises(SystemExit) as left:
        main(["run", *FLAGS, "--out", str(folder)])
    assert not left.value.code
    return folder


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    """Return a copy of the session that a test may change."""
    return shutil.copytree(small, tmp_path / "copied")


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "interactions.jsonl").read_bytes().splitlines(keepends=True)


def put(folder: Path, lines: list[bytes]) -> None:
    (folder / "interactions.jsonl").write_bytes(b"".join(lines))


def found(reader: str, folder: Path, command: Command) -> str:
    """Return what a reader says is wrong; its exit code is the one that it has for that."""
    ended: Ended = command(*READERS[reader](folder))
    assert ended.code == CODES[reader], ended.err
    return ended.out if reader == "audit" else ended.err


def test_intact_session_passes_every_reader(copied: Path, command: Command) -> None:
    ended = {reader: command(*words(copied)) for reader, words in READERS.items() if reader != "resume"}

    assert {each.code for each in ended.values()} == {ExitCode.DONE}
    assert {each.err for each in ended.values()} == {""}
    assert ended["audit"].out.startswith("whole\n")
    assert command(*READERS["resume"](copied)).code == ExitCode.DONE


@pytest.mark.parametrize("reader", READERS)
def test_lines_cut_from_end_are_found(reader: str, copied: Path, command: Command) -> None:
    lines = lines_of(copied)

    for there in range(
        0, len(lines), 1 if reader == "audit" else 6
    ):  # what the others look through is the same
        put(copied, lines[:there])

        said = found(reader, copied, command)

        place = f"interactions.jsonl:{there}: " if there else "interactions.jsonl: "
        assert f"{place}the log ends without the end of run 1" in said
        assert "it has ended, so lines behind this one are cut off" in said


@pytest.mark.parametrize("reader", ["audit", "replay", "spend", "trace"])
@pytest.mark.parametrize("bytes_lost", [1, 2, 40, 500])
def test_truncated_last_line_is_found(bytes_lost: int, reader: str, copied: Path, command: Command) -> None:
    whole = b"".join(lines_of(copied))
    put(copied, [whole[:-bytes_lost]])
    last = whole[:-bytes_lost].count(b"\n") + 1

    assert f"interactions.jsonl:{last}: " in found(reader, copied, command)


def index(folder: Path, command: Command) -> None:
    """Let a reader make the index of the log as it is."""
    assert command("spend", "--store", folder).code == ExitCode.DONE


def changed_in_the_middle(lines: list[bytes]) -> Mapping[str, tuple[list[bytes], str]]:
    """Return logs that were changed behind line 4, each with what is found in line 5."""
    flipped = lines[4].replace(b'"time":"2', b'"time":"3', 1)
    return {
        "a byte flipped": ([*lines[:4], flipped, *lines[5:]], "its hash is not that of its bytes"),
        "a line removed": (
            [*lines[:4], *lines[5:]],
            "it is number 6 at the position of number 5",
        ),
        "a line doubled": (
            [*lines[:4], lines[3], *lines[4:]],
            "it is number 4 at the position of number 5",
        ),
    }


@pytest.mark.parametrize("change", ["a byte flipped", "a line removed", "a line doubled"])
@pytest.mark.parametrize("reader", READERS)
def test_middle_change_is_found_with_line(reader: str, change: str, copied: Path, command: Command) -> None:
    changed, reason = changed_in_the_middle(lines_of(copied))[change]
    put(copied, changed)

    ended = command(*READERS[reader](copied))

    assert ended.code == (ExitCode.FOUND_WRONG if reader == "audit" else ExitCode.LOG_UNUSABLE)
    assert f"{copied}/interactions.jsonl:5: " in ended.out + ended.err
    assert reason in ended.out + ended.err


@pytest.mark.parametrize("reader", ["spend", "trace"])
def test_reader_checks_end_audit_checks_all(reader: str, copied: Path, command: Command) -> None:
    index(copied, command)
    before = command(*READERS[reader](copied))
    lines = lines_of(copied)
    put(copied, changed_in_the_middle(lines)["a byte flipped"][0])

    ended = command(*READERS[reader](copied))

    assert (ended.code, ended.out, ended.err) == (before.code, before.out, "")
    record = orjson.loads(lines[4])["id"]
    said = found("audit", copied, command)
    assert f"interactions.jsonl:5: record {record}: its hash is not that of its bytes" in said


def test_cut_after_indexing_is_found(copied: Path, command: Command) -> None:
    index(copied, command)
    put(copied, lines_of(copied)[:-3])

    assert "the log ends without the end of run 1: it has ended" in found("spend", copied, command)


def test_run_end_with_wrong_count_is_found(copied: Path, command: Command) -> None:
    *lines, end = map(read_line, lines_of(copied))
    fields = orjson.loads(end.record)
    fields["body"]["lines"] = 7
    written, _ = write_line(orjson.dumps(fields), lines[-1].head)
    put(copied, [*lines_of(copied)[:-1], written])

    said = found("spend", copied, command)

    assert f"interactions.jsonl:{len(lines) + 1}: " in said
    assert "7 lines stood before it" in said


async def write_runs(log: Path, count: int) -> None:
    """Append so many runs without bars to a log."""
    async with aclosing(JsonFileInteractionStore(log)) as store:
        for number in range(count):
            started = RunStarted(session_id=f"other-{number}", mode="paper", package="0")
            async with run_on_record(store, started, event_id=f"start-{number}"):
                pass


def test_run_end_behind_newest_runs_is_found(copied: Path, command: Command) -> None:
    asyncio.run(write_runs(copied / "interactions.jsonl", LATEST_RUNS))

    ended = command(*READERS["spend"](copied))

    assert (ended.code, ended.err) == (ExitCode.DONE, "")


def test_audit_names_record_of_broken_line(copied: Path, command: Command) -> None:
    lines = lines_of(copied)
    put(copied, changed_in_the_middle(lines)["a byte flipped"][0])

    verified = json.loads(command("audit", "verify", copied, "--json").out)

    (finding,) = verified["findings"]
    assert verified["verdict"] == finding["verdict"] == "broken"
    assert (finding["line"], finding["record_id"]) == (5, orjson.loads(lines[4])["id"])
    assert verified["lines"] == 4
    assert verified["head"] == orjson.loads(lines[3])["hash"]


def test_printed_head_is_accepted_by_later_audit(copied: Path, command: Command) -> None:
    printed = command("audit", "verify", copied).out.split("head ")[1].split()[0]
    digest, line = printed.split("@")

    same = command("audit", "verify", copied, "--head", printed, "--head", f"{digest[:16]}@{line}")
    other = command("audit", "verify", copied, "--head", f"{digest}@1")
    longer = command("audit", "verify", copied, "--head", f"{digest}@{int(line) + 5}")
    refused = command("audit", "verify", copied, "--head", digest)

    assert same.code == ExitCode.DONE
    assert (other.code, other.out.split()[0]) == (ExitCode.FOUND_WRONG, "broken")
    assert "jsonl:1: the line is not the one of --head" in " ".join(other.out.split())
    assert (longer.code, longer.out.splitlines()[0]) == (ExitCode.FOUND_WRONG, "cut off")
    assert (refused.code, "HASH@LINE" in refused.err) == (ExitCode.BAD_INPUT, True)


def test_checkpoints_of_run_are_audited(copied: Path, command: Command, tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.jsonl"
    log = copied / "interactions.jsonl"
    asyncio.run(reopened_with(log, file))

    whole = command("audit", "verify", copied, "--checkpoint", file)
    put(copied, lines_of(copied)[:-1])
    cut = command("audit", "verify", copied, "--checkpoint", file)
    missing = command("audit", "verify", copied, "--checkpoint", tmp_path / "none.jsonl")

    assert (whole.code, whole.err) == (ExitCode.DONE, "")
    assert (cut.code, cut.out.split()[0]) == (ExitCode.FOUND_WRONG, "cut")
    assert "by the checkpoint of" in " ".join(cut.out.split())
    assert (missing.code, "log.checkpoint_file" in missing.err) == (ExitCode.LOG_UNUSABLE, True)


async def reopened_with(log: Path, checkpoint_file: Path) -> None:
    """Open a log and close it, so that its end is written to a file."""
    async with aclosing(JsonFileInteractionStore(log, checkpoint_file=checkpoint_file)) as store:
        await store.open()


BAR_CHANGES: Final[Mapping[str, Callable[[list[str]], tuple[list[str], str]]]] = {
    "a bar changed": lambda rows: (
        [*rows[:300], rows[300].replace(",", ",1", 1), *rows[301:]],
        "is between lines 258 and 372",
    ),
    "a bar removed": lambda rows: (
        [*rows[:10], *rows[11:]],
        "it has 370 rows, 371 were fed: the first difference from what the run was fed is between lines 1 and 257",
    ),
    "a bar added": lambda rows: (
        [*rows, rows[-1].replace("2023", "2033")],
        "it has 372 rows, 371 were fed: the first difference from what the run was fed is between lines 258 and 373",
    ),
    "the header changed": lambda rows: ([rows[0].upper(), *rows[1:]], "is between lines 1 and 257"),
}


@pytest.mark.parametrize("change", BAR_CHANGES)
@pytest.mark.parametrize("reader", ["audit", "replay"])
def test_changed_bars_are_found_with_location(
    reader: str, change: str, copied: Path, command: Command
) -> None:
    path = copied / "bars-BTCUSDT.csv"
    rows, reason = BAR_CHANGES[change](path.read_text(encoding="utf-8").splitlines())
    path.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")

    said = found(reader, copied, command)

    assert f"{path}:" in said
    assert reason in said


def test_resume_is_refused_with_changed_bars(copied: Path, command: Command) -> None:
    path = copied / "bars-BTCUSDT.csv"
    rows = path.read_text(encoding="utf-8").splitlines(keepends=True)
    cells = rows[20].split(",")
    cells[5] = cells[5] + "1"
    path.write_text("".join([*rows[:20], ",".join(cells), *rows[21:]]), encoding="utf-8")
    before = {file.name: file.read_bytes() for file in copied.iterdir()}

    said = found("resume", copied, command)

    assert f"{path}:1: the first difference from what the run was fed is between lines 1 and 257" in said
    after = {file.name: file.read_bytes() for file in copied.iterdir()}
    assert after.pop("interactions.index.sqlite")
    assert after == before


@pytest.mark.parametrize("reader", ["audit", "replay"])
def test_missing_bars_are_found(reader: str, copied: Path, command: Command) -> None:
    (copied / "bars-BTCUSDT.csv").unlink()

    assert "bars-BTCUSDT.csv: is missing" in found(reader, copied, command)


@pytest.mark.parametrize("name", ["decisions.jsonl", "run.json"])
def test_audit_detects_changed_decisions_and_manifest(name: str, copied: Path, command: Command) -> None:
    digest = json.loads((copied / "run.json").read_bytes())["digest"].encode()
    path = copied / name
    path.write_bytes(path.read_bytes().replace(digest if name == "run.json" else b"BTC", b"0", 1))

    said = found("audit", copied, command)

    assert said.startswith("broken\n")
    assert f"{path}: the decision log has the digest {digest.decode()} on record" in said


def test_unreadable_manifest_is_reported(copied: Path, command: Command) -> None:
    (copied / "run.json").write_bytes(b"{")

    assert "run.json is not the manifest of a run" in found("audit", copied, command)
    assert "run.json is not the manifest of a run" in found("spend", copied, command)


def test_log_file_is_checked_without_session(copied: Path, command: Command) -> None:
    log = copied / "interactions.jsonl"
    whole = command("audit", "verify", log)
    put(copied, lines_of(copied)[:-1])

    cut = command("audit", "verify", log)

    assert (whole.code, cut.code) == (ExitCode.DONE, ExitCode.FOUND_WRONG)
    assert "its process was killed or still runs, or lines behind this one are cut off" in cut.out


def test_tenant_warning_hides_other_tenants(copied: Path, command: Command) -> None:
    put(copied, lines_of(copied)[:-1])

    ended = command("spend", "--store", copied, "--tenant", "other")

    assert ended.code == ExitCode.DONE
    assert ended.err == "Warning: the log is not whole. Records may be missing below.\n"


def test_json_output_is_unaffected_by_warning(copied: Path, command: Command) -> None:
    before = json.loads(command("spend", "--store", copied, "--json").out)
    put(copied, lines_of(copied)[:-1])

    assert json.loads(command("spend", "--store", copied, "--json").out) == before


@pytest.mark.parametrize("cut", [1, 5])
def test_incomplete_log_is_replayed_on_request(cut: int, copied: Path, command: Command) -> None:
    put(copied, lines_of(copied)[:-cut])

    ended = command("replay", "run", copied, "--allow-incomplete", "--json")

    report = json.loads(ended.out)
    assert ended.code == (ExitCode.DONE if report["identical"] else ExitCode.FOUND_WRONG)
    assert "Warning: " in ended.err
    assert "warnings" not in report


def test_lines_before_broken_line_are_replayed(copied: Path, command: Command) -> None:
    lines = lines_of(copied)
    calls = [place for place, line in enumerate(lines) if line.startswith(b'{"interaction_id"')]
    put(copied, [*lines[: calls[-1]], b"{}\n", *lines[calls[-1] + 1 :]])

    ended = command("replay", "run", copied, "--allow-incomplete", "--json")

    report = json.loads(ended.out)
    assert ended.code == ExitCode.FOUND_WRONG
    assert report["answered"] == len(calls) - 1
    assert report["misses"] == 1
    assert f"interactions.jsonl:{calls[-1] + 1}: it does not end in seq, prev and hash" in ended.err


def as_of_an_earlier_release(folder: Path) -> None:
    """Take out of a session what this release has added to it."""
    manifest = json.loads((folder / "run.json").read_bytes())
    del manifest["starts"]
    (folder / "run.json").write_text(json.dumps(manifest), encoding="utf-8")
    head, lines = ChainHead(), []
    for line in map(read_line, lines_of(folder)):
        if orjson.loads(line.record).get("kind") not in {"run.started", "run.ended"}:
            written, head = write_line(line.record, head)
            lines.append(written)
    put(folder, lines)


def test_earlier_release_session_is_still_read(copied: Path, command: Command) -> None:
    as_of_an_earlier_release(copied)

    ended = {reader: command(*words(copied)) for reader, words in READERS.items()}

    assert {each.code for each in ended.values()} == {ExitCode.DONE}
    assert ended["spend"].err == ended["trace"].err == ""
    unknown = "run 1 is of an earlier release, which recorded no end: lines cut from it do not show"
    assert ended["replay"].err == f"Warning: {copied}/interactions.jsonl: {unknown}\n"
    assert unknown in ended["audit"].out
    assert command("audit", "verify", copied).out.startswith("whole\n")


def with_a_new_word(folder: Path) -> str:
    """Change a word of the first call as a newer release might write it, hashes right; return the trace."""
    head, lines, trace_id = ChainHead(), [], ""
    for line in map(read_line, lines_of(folder)):
        fields = orjson.loads(line.record)
        record = line.record
        if "result" in fields and not trace_id:
            trace_id = fields["envelope"]["trace_id"]
            record = record.replace(b'"served_from":"live"', b'"served_from":"peer_cache"')
            assert record != line.record
        elif fields.get("kind") == "run.ended":
            record = record.replace(line.prev.encode(), head.hash.encode())
        written, head = write_line(record, head)
        lines.append(written)
    put(folder, lines)
    return trace_id


def test_newer_release_word_is_shown(copied: Path, command: Command) -> None:
    before = command("trace", "list", "--store", copied)
    trace_id = with_a_new_word(copied)

    ended = {reader: command(*READERS[reader](copied)) for reader in ("audit", "spend", "trace")}
    shown = command("trace", "show", trace_id, "--store", copied, "--json")

    assert {(each.code, each.err) for each in ended.values()} == {(ExitCode.DONE, "")}
    assert ended["audit"].out.startswith("whole\n")
    assert ended["trace"].out == before.out
    assert shown.code == ExitCode.DONE
    drawn = command("trace", "show", trace_id, "--store", copied)
    assert drawn.code == ExitCode.DONE
    assert "served from peer_cache" in drawn.out


@pytest.mark.parametrize(
    ("path", "lacks"), [("none", "where no log is"), (".", "where no log is"), ("n" * 300, "where no log is")]
)
def test_path_without_log_is_bad_input(path: str, lacks: str, command: Command) -> None:
    ended = command("audit", "verify", path)

    assert ended.code == ExitCode.BAD_INPUT
    assert f"PATH is {path}, {lacks}. Allowed: a log, or a folder that holds interactions.jsonl" in ended.err


def test_replay_needs_end_of_chosen_run(copied: Path, command: Command) -> None:
    assert command("run", *FLAGS, "--out", copied).code == ExitCode.DONE
    put(copied, lines_of(copied)[:-1])

    first, second = (command("replay", "run", copied, "--run", run) for run in (1, 2))

    assert (first.code, first.err) == (ExitCode.DONE, "")
    assert second.code == ExitCode.LOG_UNUSABLE
    assert "without the end of run 2: it has ended" in second.err
    assert "without the end of run 2" in found("spend", copied, command)

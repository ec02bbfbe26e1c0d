"""`parse --jsonl` answers each record by a line, in order, whatever the line holds."""

import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.parse_answers import MAX_LINE_BYTES
from tests.cli.conftest import Command, Ended
from tests.cli.piping import GOOD, ORDER, PROGRAM, Piped, piping, records

LOADED = """
import json, sys
from agentic_trading.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
"""


@pytest.fixture
def parse(command: Command, monkeypatch: pytest.MonkeyPatch) -> Piped:
    return piping(command, monkeypatch)


def answers(ended: Ended) -> list[dict[str, Any]]:
    """Return the lines of an output, as every reader of lines sees them."""
    return [json.loads(line, parse_float=Decimal) for line in ended.out.splitlines()]


def test_records_are_answered_in_order(parse: Piped) -> None:
    asked = records(
        {"id": "good", "raw": GOOD, "schema": "order"},
        {"id": 2, "raw": "{'side': 'BUY', 'qty': 0.10}", "schema": ORDER},
        {"id": "wrong", "raw": '{"side": "HOLD", "qty": 1}', "schema": "order", "mode": "native"},
        {"id": "any", "raw": "[\n  1.50,\n  null\n]", "noise": True, "schema": None},
        {"id": "cut", "raw": GOOD, "schema": "order", "stop_reason": "length"},
        {"id": "cap", "raw": GOOD, "schema": "order", "output_tokens": 5, "max_tokens": 5},
        {"raw": "null"},
    )

    ended = parse(asked, "--jsonl", "--schemas", "schemas")

    good, mended, wrong, anything, cut, cap, unnamed = answers(ended)
    value = {"side": "BUY", "qty": Decimal("0.10")}
    assert good == {"id": "good", "ok": True, "value": value}
    assert (mended["id"], mended["ok"], mended["value"]) == (2, True, value)
    assert {frozenset(fix) for fix in mended["fixes"]} == {frozenset({"kind", "where", "before", "after"})}
    assert (wrong["id"], wrong["ok"], wrong["stage"]) == ("wrong", False, "schema_validation")
    assert (wrong["errors"][0]["path"], wrong["errors"][0]["allowed"]) == ("$.side", ["BUY", "SELL"])
    assert anything == {"id": "any", "ok": True, "value": [Decimal("1.50"), None]}
    assert (cut["stage"], cap["stage"]) == ("truncated", "truncated")
    assert unnamed == {"id": None, "ok": True, "value": None}
    assert ended.code == ExitCode.DONE
    assert ended.err == "4 accepted, 3 rejected, 0 invalid records\n"


def test_options_are_defaults_for_records(parse: Piped) -> None:
    slipped = f"{GOOD[:-1]},}}"
    asked = records(
        {"id": 1, "raw": slipped}, {"id": 2, "raw": slipped, "mode": "lossless"}, {"id": 3, "raw": "[]"}
    )

    strict = answers(parse(asked, "--jsonl", "--mode", "native", "--schema", "order.json"))
    stopped = answers(parse(asked, "--jsonl", "--stop-reason", "refusal"))

    assert [each["ok"] for each in strict] == [False, True, False]
    assert {each["stage"] for each in stopped} == {"refusal"}


def test_value_digits_are_unchanged(parse: Piped) -> None:
    raw = '{"a": 1.10, "b": 12345678901234567890123, "c": 1E5, "d": -0.0, "e": 0.1234567890123456789}'

    ended = parse(records({"id": 1, "raw": raw}), "--jsonl")

    assert raw in ended.out


def test_answer_line_is_never_split(parse: Piped) -> None:
    value = {"note": "one\u2028two\u0085three\u202efour\x7f\n"}
    raw = json.dumps(value, ensure_ascii=False, indent=1)

    ended = parse(records({"id": "a\u2029b\ud800", "raw": raw}), "--jsonl")

    assert len(ended.out.splitlines()) == 1
    assert answers(ended) == [{"id": "a\u2029b\ud800", "ok": True, "value": value}]


@pytest.mark.parametrize(
    ("line", "record_id", "says"),
    [
        ("{not json", None, "not JSON: "),
        ("[1]", None, "not a record"),
        ('{"id": 7}', 7, "raw is missing"),
        ('{"id": 7, "raw": 1}', 7, "raw is 1. Allowed: the text of an answer"),
        ('{"id": 7, "raw": "{}", "schema": "none"}', 7, "Allowed: order"),
        ('{"id": 7, "raw": "{}", "schema": "../order"}', 7, "is not a schema name"),
        ('{"id": 7, "raw": "{}", "schema": ""}', 7, "is not a schema name"),
        ('{"id": 7, "raw": "{}", "schema": "a\\u0000b"}', 7, "is not a schema name"),
        ('{"id": 7, "raw": "{}", "schema": "\\ud800"}', 7, "is not a schema name"),
        (json.dumps({"id": 7, "raw": "{}", "schema": "n" * 300}), 7, "cannot be read"),
        ('{"id": 7, "raw": "{}", "schema": 5}', 7, "schema is 5. Allowed: an object"),
        ('{"id": 7, "raw": "{}", "mode": "reask"}', 7, "Allowed: native, lossless"),
        ('{"id": 7, "raw": "{}", "stop_reason": 5}', 7, "stop_reason is 5"),
        ('{"id": 7, "raw": "{}", "max_tokens": 0}', 7, "max_tokens is 0"),
        ('{"id": 7, "raw": "{}", "output_tokens": true}', 7, "output_tokens is True"),
        ('{"id": [7], "raw": "{}"}', None, "id is [7]. Allowed: text or a number"),
        ('{"id": 1e999, "raw": "{}"}', None, "id is inf"),
        ('{"id": 7, "raw": "{}", "schema": {"maximum": NaN}}', None, "NaN is not a JSON number"),
        ("[" * 100_000, None, "nested too deep"),
    ],
)
def test_invalid_record_does_not_stop_the_rest(
    line: str, record_id: int | None, says: str, parse: Piped
) -> None:
    good = records({"id": "next", "raw": GOOD})

    ended = parse(f"\n{line}\n{good}", "--jsonl", "--schemas", "schemas")

    broken, following = answers(ended)
    assert (broken["id"], broken["ok"], broken["stage"], broken["line"]) == (record_id, False, "usage", 2)
    assert broken["errors"][0]["message"].startswith("line 2: ")
    assert says in broken["errors"][0]["message"]
    assert (following["id"], following["ok"]) == ("next", True)
    assert ended.code == ExitCode.FOUND_WRONG
    assert ended.err == "1 accepted, 0 rejected, 1 invalid records\n"


def test_unusable_schema_is_answered_per_record(parse: Piped) -> None:
    Path("schemas/broken.json").write_text('{"type": "objekt"}', encoding="utf-8")
    Path("schemas/text.json").write_text("no schema", encoding="utf-8")
    asked = records(*({"id": 1, "raw": GOOD, "schema": name} for name in ("broken", "broken", "text")))

    ended = parse(asked, "--jsonl", "--schemas", "schemas")

    assert [each["stage"] for each in answers(ended)] == ["schema_invalid", "schema_invalid", "usage"]


def test_schema_name_without_folder_is_explained(parse: Piped) -> None:
    told = answers(parse(records({"id": 1, "raw": GOOD, "schema": "order"}), "--jsonl"))

    assert "--schemas" in told[0]["errors"][0]["message"]


def test_execution_records_are_native(parse: Piped) -> None:
    asked = records({"id": 1, "raw": GOOD, "mode": "lossless"}, {"id": 2, "raw": GOOD, "schema": ORDER})

    told = answers(parse(asked, "--jsonl", "--workflow", "execution"))

    assert [each["stage"] for each in told] == ["usage", "truncated"]


def test_invalid_bytes_and_endless_lines_are_answered(parse: Piped) -> None:
    endless = b'{"raw": "' + b"a" * 3 * MAX_LINE_BYTES + b'"}\n'
    good = records({"id": "last", "raw": GOOD}).rstrip().encode()

    ended = parse(b'{"raw": "\xff"}\n' + endless + good, "--jsonl")

    assert [each["ok"] for each in answers(ended)] == [False, False, True]
    assert str(MAX_LINE_BYTES) in answers(ended)[1]["errors"][0]["message"]


def test_unencodable_raw_answer_is_a_verdict(parse: Piped) -> None:
    ended = parse('{"id": 1, "raw": "{\\"a\\": \\"\\ud800\\"}"}\n', "--jsonl")

    assert [each["stage"] for each in answers(ended)] == ["json_parse"]


@pytest.mark.parametrize("words", [["parse", "--explain"], ["parse", "--jsonl"]], ids=" ".join)
def test_parse_loads_no_heavy_modules(words: list[str]) -> None:
    asked = records({"raw": GOOD})

    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], input=asked, capture_output=True, check=True, text=True
    )

    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert loaded & {"anthropic", "openai", "numpy", "aiokafka", "redis", "jinja2", "json_repair"} == set()
    assert "agentic_trading" in loaded


@pytest.mark.timeout(60)
def test_line_is_answered_before_the_next() -> None:
    asked = records({"id": 1, "raw": GOOD}).encode()
    piped = subprocess.Popen([PROGRAM, "parse", "--jsonl"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with piped as program:
        assert program.stdin
        assert program.stdout
        for _ in range(2):
            program.stdin.write(asked)
            program.stdin.flush()
            assert json.loads(program.stdout.readline())["ok"]


@pytest.mark.timeout(60)
def test_closed_reader_ends_parse_quietly() -> None:
    asked = records({"id": 1, "raw": GOOD}).encode() * 20_000
    one_line = "import sys; sys.stdout.write(sys.stdin.readline())"  # and goes
    command = f"'{PROGRAM}' parse --jsonl | '{sys.executable}' -c '{one_line}'"

    done = subprocess.run(["/bin/sh", "-c", command], input=asked, capture_output=True, check=False)

    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""

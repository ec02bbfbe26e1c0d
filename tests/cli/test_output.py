"""What is printed is plain, exact and harmless to a terminal."""

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

from agentic_trading.audit.trace import CausalPath, EventNode, TraceTree
from agentic_trading.cli import exits
from agentic_trading.cli.chains import path_of, tree_of
from agentic_trading.cli.exits import ExitCode, run_to_exit, say
from agentic_trading.cli.main import main
from agentic_trading.cli.output import (
    command_line,
    counts,
    heading,
    paragraph,
    print_table,
    show_json,
    unbroken,
)
from agentic_trading.errors import TradingError
from agentic_trading.operate.lines import printable, usd
from agentic_trading.operate.trace_lines import step_text
from tests.build import NOW, event


@given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert printable(text).isprintable()


ESCAPES = "\x1b[2J\x9bmid\r"
SHOWN = "\\x1b[2J\\x9bmid\\r"


def test_control_characters_are_escaped_in_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = EventNode(event(id=ESCAPES, kind=ESCAPES, causation_id=f"not-here-{ESCAPES}"))
    texts = (heading(ESCAPES), paragraph(ESCAPES), command_line(ESCAPES), unbroken("id", ESCAPES))

    chain = tree_of(ESCAPES, TraceTree([node.event]))
    print_table(chain, path_of(CausalPath(ESCAPES, "t", (node,), (), ())), *texts)

    printed = capsys.readouterr().out
    assert printed.count(SHOWN) == 14
    assert printed.replace("\n", "").isprintable()


def test_control_characters_are_escaped_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        raise TradingError(f"no such id: {ESCAPES}\nallowed are others")

    with pytest.raises(SystemExit, match=str(ExitCode.BAD_INPUT.value)):
        run_to_exit(program, debug=False)

    assert capsys.readouterr().err == f"Error: no such id: {SHOWN}\nallowed are others\n"


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S"))))
def test_plain_text_is_not_escaped(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("nusd", "spelled"),
    [
        (0, "0.000000"),
        (1_500_000, "0.001500"),
        (9_990_000_000, "9.990000"),
        (12_345_678_900_000, "12,345.68"),
    ],
)
def test_small_amounts_keep_their_digits(nusd: int, spelled: str) -> None:
    assert usd(nusd) == spelled


def test_counts_are_sorted_greatest_first() -> None:
    assert counts({"b": 1, "a": 1, "c": 1_000}) == "c 1,000 · a 1 · b 1"
    assert counts({}) == "none"


def test_square_brackets_are_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("[bold]gap[/bold]   ")

    assert capsys.readouterr().out == "[bold]gap[/bold]\n"


def test_copyable_command_is_never_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(command_line("agentic-trading trace why 9c8a2cf7-2f6b"), on=Console(width=20))

    assert capsys.readouterr().out == "  agentic-trading trace why 9c8a2cf7-2f6b\n"


def test_json_output_serializes_timestamps_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    show_json({"at": NOW, "kinds": [complex(1, 2)]})

    assert '"at": "2026-01-02T00:00:00+00:00"' in capsys.readouterr().out


def test_known_event_shows_key_fields() -> None:
    body = {"symbol": "BTCUSDT", "rule": "max_position", "was": "12", "allowed": "at most 10", "empty": ""}

    assert step_text(EventNode(event("order.denied", body=body))) == [
        "rule max_position · was 12 · allowed at most 10"
    ]


def test_unknown_event_shows_plain_values() -> None:
    assert step_text(EventNode(event("margin.call", body={"amount": "5", "why": {"deep": 1}}))) == [
        "amount 5"
    ]


def test_event_lists_are_joined_with_commas() -> None:
    body = {"verdict": "stand_aside", "vetoed_by": ["trend", "indicators"], "plan": None}

    assert step_text(EventNode(event("analysis.assessed", body=body))) == [
        "verdict stand_aside · vetoed_by trend, indicators"
    ]


NOT_OURS = (*(chr(code) for code in range(0x7F, 0xA0)), "\u2028", "\u202e", "\u2066", "\u200f", "\u061c")


def test_control_characters_are_escaped_in_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    value = {"id": f"{ESCAPES}{''.join(NOT_OURS)}é"}

    show_json(value)

    printed = capfdbinary.readouterr().out.decode()
    assert json.loads(printed) == value
    assert "é" in printed
    assert printed.replace("\n", "").isprintable()


def test_control_characters_are_escaped_in_trees(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = Tree(ESCAPES)
    drawn.add(Text(f"two\nlines {ESCAPES}", "bold"))

    print_table(ESCAPES, drawn, Text(ESCAPES))

    printed = capsys.readouterr().out
    assert printed.count("\\x1b[2J\\x9bmid") == 4
    assert printed.replace("\n", "").isprintable()


def test_control_characters_are_escaped_in_messages(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"one {ESCAPES}\ntwo", err=True)

    assert capsys.readouterr().err == f"one {SHOWN}\ntwo\n"


def test_control_characters_in_option_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--data", "btcusdt-5m", "--budget-usd", ESCAPES])

    assert "\x1b" not in capsys.readouterr().err


DOORS = {
    "exits.py": {"echo", "write"},
    "main.py": {"write"},
    "output.py": {"echo", "print", "Console"},
    "record_view.py": {"echo"},
    "parse_answers.py": {"write"},
    "dlq.py": {"write"},
    "strategy_output.py": {"echo"},
}
"""What may print: `say`, `print_table` and `print_json`, lines of JSON that `escape_json_line` has made, facts as CSV, the bytes of a message where
no terminal is, the code that our templates make of values of a grid, and the constant lines of a process that a signal ends."""
PRINTS = {"print", "echo", "secho", "prompt", "confirm", "style", "Console", "write", "print_exc", "rprint"}


def printing(source: str) -> set[str]:
    """Return the calls by which a module prints something that is not a constant of its own."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            on_console = isinstance(node.func, ast.Attribute) and name == "print"
            is_own = all(
                isinstance(each, ast.Constant) or getattr(each, "id", "") == "__version__"
                for each in node.args
            )
            if name in PRINTS and not on_console and not (is_own and name != "Console"):
                found.add(name)
    return found


def test_commands_print_only_through_escaping_functions() -> None:
    files = Path(exits.__file__).parent.glob("*.py")
    found = {file.name: printing(file.read_text(encoding="utf-8")) for file in files}

    assert {name: calls for name, calls in found.items() if calls - DOORS.get(name, set())} == {}
    assert printing("typer.echo(f'no {id}')\nprint(id)\nConsole()\nsys.stdout.write(x)") == {
        "echo",
        "print",
        "Console",
        "write",
    }

"""Console output: tables, escaped text and JSON. Imported only by commands that print."""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final, TypeVar

import orjson
import typer
from pydantic import BaseModel
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text
from typing_extensions import override

from agentic_trading.operate.lines import printable, printable_lines

T = TypeVar("T")

WIDTH_OF_A_PIPE = 240
"""Columns without a terminal, so that each table row is on one line for the next program."""


class PlainConsole(Console):
    """A console that prints text without markup and escapes control characters."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, stderr=stderr, width=width)

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable, with control characters in their texts escaped."""
        for segment in super().render(renderable, options):
            is_harmless = segment.control or segment.text.isprintable() or segment.text == "\n"
            yield segment if is_harmless else Segment(printable_lines(segment.text), segment.style)


def console() -> Console:
    """Return a console on standard output."""
    return PlainConsole(width=None if sys.stdout.isatty() else WIDTH_OF_A_PIPE)


def print_table(*parts: RenderableType, on: Console | None = None) -> None:
    """Print each part on standard output, without trailing blanks."""
    out = on or console()
    with out.capture() as drawn:
        # A group, because each text then keeps its own wrapping. No crop, because a command to copy must be whole.
        out.print(Group(*parts), crop=False)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()), flush=True)


def show_json(value: Any) -> None:
    """Print a value as one JSON document on standard output. Timestamps and Decimals become strings."""
    print_json(orjson.dumps(value, default=_plain, option=orjson.OPT_INDENT_2).decode())


_STEERING: Final = re.compile("[\x7f-\x9f\u200e\u200f\u061c\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def print_json(text: str) -> None:
    """Print JSON text on standard output, with control characters escaped."""
    typer.echo(escape_json_line(text).encode())


def escape_json_line(text: str) -> str:
    """Return the same JSON value with control, bidirectional and line-breaking characters escaped."""
    return _STEERING.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else str(value)


_UNBROKEN = 45
"""The longest word with a digit that is never broken: an id, but not a path or a digest."""
_SHORTEST = 12


class FittedTable(Table):
    """A table without borders that never breaks a number.

    Columns of text shrink first. If they cannot shrink enough, each row is printed as a list.
    """

    @override
    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the table in the available width."""
        columns = [[str(cell) for cell in (column.header, *column.cells)] for column in self.columns]
        widths = [max(map(cell_len, cells)) for cells in columns]
        least = [self._least(column, cells) for column, cells in zip(self.columns, columns, strict=True)]
        room = options.max_width - 2 * (len(columns) - 1)
        if sum(least) > room:
            yield from self._lists(columns)
            return
        while sum(widths) > room:
            slack = [width - low for width, low in zip(widths, least, strict=True)]
            widths[slack.index(max(slack))] -= 1
        for column, width in zip(self.columns, widths, strict=True):
            column.width = width
        yield from super().__rich_console__(console, options)

    @staticmethod
    def _least(column: Column, cells: Sequence[str]) -> int:
        """Return the smallest width that breaks no number and no short word."""
        if column.justify == "right":
            return max(*map(cell_len, cells[0].split() or [""]), *map(cell_len, cells[1:]), 0)
        words = [word for cell in cells for word in cell.split()]
        numbers = (cell_len(word) for word in words if any(map(str.isdigit, word)))
        others = (min(cell_len(word), _SHORTEST) for word in words)
        return max(*(number for number in numbers if number <= _UNBROKEN), *others, column.min_width or 0, 0)

    def _lists(self, columns: Sequence[Sequence[str]]) -> Iterator[RenderableType]:
        _, *names = (cells[0] for cells in columns)
        for title, *cells in zip(*(cells[1:] for cells in columns), strict=True):
            yield Text(title, "bold", no_wrap=True, overflow="ignore")
            yield Facts([(f"  {name}", cell) for name, cell in zip(names, cells, strict=True) if cell])


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels with their values. Words are never broken, so a long word may exceed the window."""

    lines: Sequence[tuple[str, str]]
    least: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw each label with its value, on several lines if the value is long."""
        indent = max([self.least, *(cell_len(label) for label, _ in self.lines)]) + 2
        room = max(options.max_width - indent, 1)
        for label, value in self.lines:
            shown = [value] if cell_len(value) <= room else wrap(value, room, **_WHOLE_WORDS)
            for number, line in enumerate(shown):
                beside = label if number == 0 else ""
                yield Text(f"{beside:<{indent}}{line}", no_wrap=True, overflow="ignore")


_WHOLE_WORDS: Final[Mapping[str, Any]] = {"break_long_words": False, "break_on_hyphens": False}


def table(*columns: str, right: Collection[str] = ()) -> FittedTable:
    """Return an empty table without borders. The columns named in `right` are numbers."""
    made = FittedTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def heading(text: str) -> Text:
    """Return a heading."""
    return Text(f"\n{printable_lines(text)}", style="bold cyan")


def paragraph(text: str, style: str = "") -> Padding:
    """Return a paragraph whose wrapped lines are indented."""
    return Padding(Text(printable_lines(text), style), (0, 0, 0, 2))


def command_line(text: str) -> Text:
    """Return a command to copy. It is never wrapped."""
    return Text(f"  {printable(text)}", style="green", no_wrap=True, overflow="ignore")


def unbroken(label: str, value: str) -> Text:
    """Return a labelled value to copy, such as a digest. It is never wrapped."""
    return Text(f"  {label} {printable(value)}", no_wrap=True, overflow="ignore")


def counts(numbers: dict[str, int]) -> str:
    """Format counts by name, largest first."""
    ordered = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return " · ".join(f"{printable(name)} {number:,}" for name, number in ordered) or "none"


def rows(target: FittedTable, cells: Iterable[Sequence[str]]) -> FittedTable:
    """Add a row for each sequence of cells to `target`, and return it."""
    for row in cells:
        target.add_row(*(printable(cell) for cell in row))
    return target


def listing(
    items: Iterable[T], columns: Mapping[str, Callable[[T], str]], right: Collection[str] = ()
) -> FittedTable:
    """Return a row for each item and a column for each name. The columns named in `right` are numbers."""
    cells = ([cell(item) for cell in columns.values()] for item in items)
    return rows(table(*columns, right=right), cells)


MOST_LINES = 5


def capped(lines: Sequence[str]) -> list[str]:
    """Return the first `MOST_LINES` lines, and a line with the number of the others."""
    more = len(lines) - MOST_LINES
    return list(lines) if more <= 0 else [*lines[:MOST_LINES], f"and {more:,} more"]


def facts(pairs: Iterable[tuple[str, str]]) -> Facts:
    """Return labelled lines with escaped text."""
    return Facts([("  " + printable(label), printable(value)) for label, value in pairs], least=22)


def terminal_is_watching() -> bool:
    """Return whether standard error is a terminal. A progress bar is drawn only on a terminal."""
    return sys.stderr.isatty()

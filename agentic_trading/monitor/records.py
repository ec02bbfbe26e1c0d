"""Read the records of logs for pages: around broken lines, and with texts of bounded length."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from urllib.parse import urlencode

import orjson

from agentic_trading.canonical import exact_value
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.facts import RecordQuery
from agentic_trading.llm.store import ChainedRecord
from agentic_trading.monitor.sources import ShownLog, Sources
from agentic_trading.operate.lines import printable, printable_lines

T = TypeVar("T")

MOST_CHARS: Final = 200 * 1024
"""Characters of a text on a page. The whole text has an address of its own."""

MOST_PAGE_CHARS: Final = 4 << 20
"""Characters of all texts of a page. Later texts are only linked."""

MOST_BROKEN: Final = 5
"""Broken lines that a page reads around."""


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text of a record, without control characters.

    Attributes:
        text: The text, or its beginning.
        note: The size of the part that is shown, or an empty text if it is whole.
        href: The address of the whole text.

    """

    text: str
    note: str
    href: str


class PageTexts:
    """Makes the texts of one page, with a limit for all of them."""

    def __init__(self) -> None:
        self._left = MOST_PAGE_CHARS

    def shown(self, text: str, record_id: str, field: str) -> ShownText:
        """Return a text of a field, indented if it is JSON and short enough."""
        most = min(MOST_CHARS, self._left)
        whole = text if len(text) > most else indented(text)
        part = page_text((whole if len(whole) <= most else text)[:most])
        self._left = max(0, self._left - len(part))
        note = "" if len(text) <= most else f"The first {most:,} of {len(text):,} characters."
        return ShownText(part, note, f"/trace/text?{urlencode({'id': record_id, 'field': field})}")


def page_text(text: str) -> str:
    """Return a text for a page. Line breaks stay, tabs are spaces, and control characters are escaped."""
    return printable_lines(text.expandtabs(2))


def indented(text: str) -> str:
    """Return JSON with a line for each value and all digits of its numbers. Other texts are unchanged."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value = exact_value(text.encode())
        return orjson.dumps(value, default=_number, option=orjson.OPT_INDENT_2).decode()
    except (ValueError, TypeError, RecursionError):
        return text


def _number(value: object) -> orjson.Fragment:
    return orjson.Fragment(str(value))


async def readable_logs(sources: Sources) -> tuple[list[ShownLog], list[str]]:
    """Return the logs that can be read, and a text for each other one."""
    readable, problems = [], []
    for each in await sources.logs():
        try:
            await each.records.lines([])  # reads the lines that were written since
        except StoreError as e:
            problems.append(problem_of(sources, each, e))
        else:
            readable.append(each)
    return readable, problems


def problem_of(sources: Sources, source: ShownLog, error: Exception) -> str:
    """Return a text about a log that cannot be read."""
    if sources.tenant is not None:  # without the place, because lines are of all tenants
        return f"The log of {source.name} is not whole. Records may be missing."
    return f"{printable(sources.without_paths(str(error)))}. Records may be missing."


async def intact_lines(
    source: ShownLog,
    make: Callable[[ChainedRecord], T],
    query: RecordQuery,
    broken: list[StoreError],
    *,
    newest_first: bool = False,
    limit: int | None = None,
    tenant: str | None = None,
) -> AsyncGenerator[T]:
    """Yield an item for each selected line, in the log's order or reversed, and leave out broken lines.

    Args:
        source: The log.
        make: Makes an item of a line. It may raise `StoreError` for a line that it cannot read.
        query: The selection.
        broken: Gets the error of each broken line.
        newest_first: The reverse order.
        limit: The maximum number of lines.
        tenant: The tenant, or None for the whole log.

    Raises:
        StoreError: If the log cannot be read, or has more than `MOST_BROKEN` broken lines.

    """
    left = limit
    spans = [(query.after, query.before)]
    while spans:
        after, before = spans.pop()
        # The numbers are kept, because an error may follow after some lines.
        last = 0
        part = replace(query, after=after, before=before)
        try:
            async with aclosing(
                source.records.read(
                    lambda line: (line.seq, make(line)),
                    part,
                    newest_first=newest_first,
                    limit=left,
                    tenant=tenant,
                )
            ) as lines:
                async for seq, item in lines:
                    last = seq
                    left = None if left is None else left - 1
                    yield item
        except StoreError as e:
            if not e.line or len(broken) >= MOST_BROKEN or e.line in {each.line for each in broken}:
                raise
            broken.append(e)
            # The nearer part is last, because it is taken first.
            if newest_first:
                spans += [(after, e.line), (e.line, last or before)]
            else:
                spans += [(e.line, before), (last or after, e.line)]


def problems_of(sources: Sources, source: ShownLog, broken: Sequence[StoreError]) -> list[str]:
    """Return a text for each broken line, each text once."""
    return list(dict.fromkeys(problem_of(sources, source, each) for each in broken))

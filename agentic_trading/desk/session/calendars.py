"""The exchange calendar of a session, and its copy in the session's folder."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from agentic_trading.desk.market.calendar import (
    ExchangeCalendar,
    calendar_of,
    calendar_rows,
    exchange_calendar,
)
from agentic_trading.desk.session.feeds import ReadAhead
from agentic_trading.llm.errors import StoreError
from agentic_trading.operate.session_folder import RunManifest, SessionFolder, replacing, writing

_BEFORE: Final = timedelta(days=7)
"""The days before the first bar, so that the day of this bar is in the calendar in every time zone."""


async def new_calendar(name: str, feeds: Sequence[ReadAhead]) -> ExchangeCalendar | None:
    """Return the calendar with a name, from a week before the first bar. None for an empty name.

    Raises:
        UnknownCalendarError: If there is no such calendar.
        MissingExtraError: If the package for calendars is not installed.

    """
    firsts = [feed.first for feed in feeds]
    known = [bar.open_time for bar in firsts if bar is not None]
    # A stream is not read yet, so that its calendar has all days that the package gives.
    return await calendar_from(name, min(known) if len(known) == len(feeds) else None)


async def calendar_from(name: str, first: datetime | None) -> ExchangeCalendar | None:
    """Return the calendar with a name, from a week before a bar, or of 20 years. None for an empty name.

    Raises the errors of `new_calendar`.
    """
    if not name:
        return None
    begin = None if first is None else first - _BEFORE
    calendar = await asyncio.to_thread(exchange_calendar, name, None if begin is None else begin.date())
    return calendar if begin is None else calendar.since(begin)


async def keep_calendar(folder: SessionFolder, run: int, calendar: ExchangeCalendar | None) -> None:
    """Write the calendar of a run into its folder. Raises `StoreError` if it cannot be written."""
    if calendar is not None:
        await asyncio.to_thread(_write, folder.calendar(run), calendar)


def _write(path: Path, calendar: ExchangeCalendar) -> None:
    with writing(path), replacing(path) as file:
        file.writelines(f"{row}\n".encode() for row in calendar_rows(calendar))


async def kept_calendar(folder: SessionFolder, manifest: RunManifest) -> ExchangeCalendar | None:
    """Return the calendar in the folder of a run. None for a run without one.

    Raises:
        StoreError: If the file is missing or damaged.

    """
    if not manifest.calendar:
        return None
    path = folder.calendar(manifest.run_number)
    try:
        text = await asyncio.to_thread(path.read_text, "utf-8")
        return calendar_of(manifest.calendar, text.splitlines())
    except (OSError, ValueError) as e:
        raise StoreError(path, f"is not the calendar of the run: {e}. Restore the session's files") from e

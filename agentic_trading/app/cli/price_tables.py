"""How prices, what differs from them, and costs that were computed again are drawn."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, date, datetime, time
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from agentic_trading.app.cli.output import facts, heading, rows, table
from agentic_trading.app.options import OptionError
from agentic_trading.app.prices.comparison import WHOLE, PriceComparison, PriceDifference
from agentic_trading.app.prices.cost_audit import FINDINGS, CostCheck, books_at_hand, recomputed
from agentic_trading.app.prices.listing import CLASSES, MULTIPLIERS, PLAIN, spelled_rate, spelled_times
from agentic_trading.app.settings import start
from agentic_trading.app.wire import records_of
from agentic_trading.clock import SystemClock
from agentic_trading.governance.prices import ModelPrice, PriceBook, Rates, short_id
from agentic_trading.llm.models import Capabilities

ROOM_FOR_SOURCES = 170
"""Columns from which on a list of prices has room for days, multipliers and sources."""

_NARROW = ("model", "requests", *CLASSES)
_WIDE = (*_NARROW, "since", "times", "checked", "source")
_SHORT = {"cache_read": "read", "cache_write_5m": "write 5m", "cache_write_1h": "write 1h"}


def book_in_use() -> PriceBook:
    """Return the packaged book with the user's own over it; raises `SettingsError` and `TableError`."""
    own = start().prices_file
    return PriceBook.load(None, *([] if own is None else [own]))


def moment_of(day: str = "") -> datetime:
    """Return the first moment (UTC) of a day that is spelled as 2026-11-22, by default now; raises `OptionError`."""
    if not day:
        return SystemClock().now()
    try:
        return datetime.combine(date.fromisoformat(day), time(), UTC)
    except ValueError:
        raise OptionError("--on", repr(day), "a day such as 2026-11-22") from None


def price_table(prices: Iterable[ModelPrice], book: PriceBook, at: datetime, width: int) -> RenderableType:
    """Return a row a price and tier; in a narrow window `prices show MODEL` tells the rest."""
    columns = _WIDE if width >= ROOM_FOR_SOURCES else _NARROW
    drawn = table(*(_SHORT.get(name, name) for name in columns), right=_right(columns))
    cells = (row for price in prices for row in _cells(price))
    return Group(rows(drawn, ([of.get(name, "") for name in columns] for of in cells)), _note(book, at))


def price_rows_text(price: ModelPrice, book: PriceBook, at: datetime) -> RenderableType:
    """Tell everything of one price."""
    columns = ("requests", *CLASSES)
    drawn = table(*(_SHORT.get(name, name) for name in columns), right=_right(columns))
    cells = rows(drawn, ([of[name] for name in columns] for of in _cells(price)))
    title = heading(f"{price.provider}/{price.model}")
    return Group(title, cells, facts(_facts_of(price, book)), _note(book, at))


def as_value(prices: Iterable[ModelPrice], book: PriceBook, at: datetime) -> dict[str, Any]:
    """Return prices for JSON."""
    told = [price.model_dump(mode="json") for price in prices]
    return {"book": book.id, "on": at.astimezone(UTC).date(), "nusd_per_token": told}


def comparison_table(found: PriceComparison) -> RenderableType:
    """Return a row for what is not equal, one for all that is equal of a model, and a line of what is only there."""
    told = (line for line in found.lines if line.about != WHOLE or line.verdict != "missing here")
    drawn = rows(table("model", "", "what", "here", "there", right=("here", "there")), _compared(told))
    beyond = [line.model for line in found.lines if line.about == WHOLE and line.verdict == "missing here"]
    note = f"USD per million tokens, and multipliers; book {short_id(found.book)}"
    return Group(drawn, note, f"listed there and not here: {', '.join(beyond) or 'no model'}")


def costs_on_record(log: Path, earlier: Sequence[Path]) -> CostCheck:
    """Compute every cost of a log again, by the book in use, the packaged one and `earlier` ones.

    Raises `StoreError` for a log that cannot be read, `TableError` for a book that cannot be used.
    """
    settings = start()
    books = books_at_hand(settings.prices_file, earlier)
    capabilities = Capabilities.load(*([] if settings.models_file is None else [settings.models_file]))

    async def read() -> CostCheck:
        async with aclosing(records_of(log)) as records, aclosing(records.scan()) as entries:
            return await recomputed(entries, books, capabilities)

    return asyncio.run(read())


def cost_table(found: CostCheck) -> RenderableType:
    """Return how many costs came out again, and a row for each that did not."""
    counted = ((each, f"{len(found.of(each)):,}") for each in FINDINGS)
    told = [record for record in found.records if record.finding in {"differs", "in doubt", "no such book"}]
    drawn = table(
        "line", "record", "model", "", "on record", "computed", right=("line", "on record", "computed")
    )
    cells = (
        (str(each.line), each.interaction_id, each.model, each.finding, f"{each.on_record_nusd:,}",
         "-" if each.computed_nusd is None else f"{each.computed_nusd:,}")
        for each in told
    )  # fmt: skip
    parts: list[RenderableType] = [facts([*counted, ("not priced", f"{found.not_priced:,}")])]
    if told:
        parts += [heading("Not computed, or not the same (nano-dollars)"), rows(drawn, cells)]
    missing = dict.fromkeys(each.price_book for each in found.of("no such book"))
    return Group(*parts, *(f"not at hand: {book}; name its file by --book" for book in missing))


def cost_value(found: CostCheck) -> dict[str, Any]:
    """Return the same for JSON; those that agree are only counted."""
    counts = {each: len(found.of(each)) for each in FINDINGS} | {"not priced": found.not_priced}
    return {"counts": counts, "records": [each for each in found.records if each.finding != "agrees"]}


def _compared(lines: Iterable[PriceDifference]) -> Iterator[Sequence[str]]:
    by_model: dict[str, list[PriceDifference]] = {}
    for line in lines:
        by_model.setdefault(line.model, []).append(line)
    for model, told in by_model.items():
        equal = [line.about for line in told if line.verdict == "equal"]
        if equal:
            yield model, "equal", ", ".join(equal), "", ""
        for line in told:
            if line.verdict != "equal":
                yield model, line.verdict, line.about, line.ours, line.theirs


def _cells(price: ModelPrice) -> Iterator[dict[str, str]]:
    """Give the cells of a price, then of each of its tiers, by column."""
    first = {
        "model": f"{price.provider}/{price.model}",
        "since": str(price.valid_from),
        "times": " · ".join(f"{word} {times}" for word, times in _times(price) if times != PLAIN),
        "checked": str(price.checked_on),
        "source": price.source,
    }
    yield first | {"requests": "up to that" if price.tiers else "all"} | _rates(price)
    for tier in price.tiers:
        yield {"requests": f"over {tier.over_input_tokens:,}"} | _rates(tier)


def _rates(rates: Rates) -> dict[str, str]:
    return {name: spelled_rate(getattr(rates, name)) for name in CLASSES}


def _times(price: ModelPrice) -> Iterator[tuple[str, str]]:
    for name in MULTIPLIERS:
        for word, ratio in getattr(price, name).items():
            yield f"{name} {word}", spelled_times(Fraction(*ratio))


def _facts_of(price: ModelPrice, book: PriceBook) -> Iterator[tuple[str, str]]:
    others = (other for other in book if (other.provider, other.model) == (price.provider, price.model))
    days = ", ".join(str(other.valid_from) for other in others if other.valid_from != price.valid_from)
    yield "multipliers", " · ".join(f"{word} {times}" for word, times in _times(price)) or "none"
    yield "since", f"{price.valid_from}{f'; other prices since {days}' if days else ''}"
    yield "checked on", str(price.checked_on)
    yield "source", price.source


def _right(columns: Iterable[str]) -> list[str]:
    return [_SHORT.get(name, name) for name in columns if name in CLASSES]


def _note(book: PriceBook, at: datetime) -> str:
    day = at.astimezone(UTC).date()
    return f"USD per million tokens on {day}; requests by tokens in; book {short_id(book.id)}"

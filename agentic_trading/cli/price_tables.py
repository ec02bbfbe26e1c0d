"""Tables of prices and of recomputed costs."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from fractions import Fraction

from rich.console import Group, RenderableType

from agentic_trading.audit.spend import COST_FINDINGS, CostCheck
from agentic_trading.cli.output import facts, heading, rows, table
from agentic_trading.cli.settings import configured
from agentic_trading.clock import SystemClock
from agentic_trading.governance.prices import ModelPrice, PriceBook, Rates, Ratio, short_id
from agentic_trading.operate.prices import (
    MULTIPLIERS,
    TOKEN_CLASSES,
    multiplier_text,
    rate_text,
)
from agentic_trading.platform.errors import OptionError

_CLASS_COLUMNS = ("input", "output", "read", "write 5m", "write 1h")


def load_book() -> PriceBook:
    """Return the packaged book with the user's own over it; raises `SettingsError` and `TableError`."""
    from agentic_trading.platform.tables import load_tables

    return load_tables(None, configured().prices_file).prices


def start_of_day(day: str = "") -> datetime:
    """Return the first moment (UTC) of a day that is spelled as 2026-11-22, by default now; raises `OptionError`."""
    if not day:
        return SystemClock().now()
    try:
        return datetime.combine(date.fromisoformat(day), time(), UTC)
    except ValueError:
        raise OptionError("--on", repr(day), "a day such as 2026-11-22") from None


def price_table(prices: Iterable[ModelPrice], book: PriceBook, at: datetime) -> RenderableType:
    """Return a row for each price and tier."""
    cells = (
        ("" if number else f"{price.provider}/{price.model}", *row)
        for price in prices
        for number, row in enumerate(_rates(price))
    )
    drawn = rows(table("model", "requests", *_CLASS_COLUMNS, right=_CLASS_COLUMNS), cells)
    return Group(drawn, _note(book, at))


def price_details(price: ModelPrice, book: PriceBook, at: datetime) -> RenderableType:
    """Return everything of one price."""
    return Group(heading(f"{price.provider}/{price.model}"), price_parts(price, book), _note(book, at))


def price_parts(price: ModelPrice, book: PriceBook) -> RenderableType:
    """Return the rates of a price, its multipliers, its days and its source."""
    others = (other for other in book if (other.provider, other.model) == (price.provider, price.model))
    days = ", ".join(str(other.valid_from) for other in others if other.valid_from != price.valid_from)
    return Group(
        rows(table("  requests", *_CLASS_COLUMNS, right=_CLASS_COLUMNS), _rates(price, indent="  ")),
        facts([
            *((name, _multipliers(getattr(price, name))) for name in MULTIPLIERS),
            ("since", f"{price.valid_from}{f'; other prices since {days}' if days else ''}"),
            ("checked on", str(price.checked_on)),
            ("source", price.source),
        ]),
    )


def _rates(price: ModelPrice, indent: str = "") -> Iterator[tuple[str, ...]]:
    every: list[tuple[str, Rates]] = [("up to that" if price.tiers else "all", price)]
    every += [(f"over {tier.over_input_tokens:,}", tier) for tier in price.tiers]
    for name, rates in every:
        yield f"{indent}{name}", *(rate_text(getattr(rates, each)) for each in TOKEN_CLASSES)


def _multipliers(words: Mapping[str, Ratio]) -> str:
    return (
        " · ".join(f"{word} {multiplier_text(Fraction(*ratio))}" for word, ratio in words.items()) or "none"
    )


def _note(book: PriceBook, at: datetime) -> str:
    return f"USD per million tokens on {at.astimezone(UTC).date()}; requests by tokens in; book {short_id(book.id)}"


def cost_counts(found: CostCheck) -> dict[str, int]:
    """Return how many records have each finding, and how many have no price."""
    return {each: len(found.of(each)) for each in COST_FINDINGS} | {"not priced": found.not_priced}


def cost_table(found: CostCheck) -> RenderableType:
    """Return how many costs are as recomputed, and a row for each that is not."""
    parts: list[RenderableType] = [facts((name, f"{n:,}") for name, n in cost_counts(found).items())]
    others = [each for each in found.records if each.finding in {"differs", "in doubt", "no such book"}]
    if others:
        columns = ("line", "record", "model", "", "on record", "computed")
        cells = (
            (str(each.line), each.interaction_id, each.model, each.finding, f"{each.on_record_nusd:,}",
             "-" if each.computed_nusd is None else f"{each.computed_nusd:,}")
            for each in others
        )  # fmt: skip
        parts.append(heading("Not computed, or not the same (nano-dollars)"))
        parts.append(rows(table(*columns, right=("line", "on record", "computed")), cells))
    missing = dict.fromkeys(each.price_book for each in found.of("no such book"))
    return Group(*parts, *(f"not at hand: {book}; name its file by --book" for book in missing))

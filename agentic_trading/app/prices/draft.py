"""A price book with what another source says differently: for people to read, change and then use."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from difflib import unified_diff
from fractions import Fraction
from pathlib import Path
from typing import Any

import orjson

from agentic_trading.app.options import OptionError
from agentic_trading.app.prices.comparison import PriceSource, in_force
from agentic_trading.app.prices.listing import CLASSES, MULTIPLIERS, Listing, listing_of
from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook, Ratio, Tier, short_id
from agentic_trading.llm.models import sha256_of_rows


@dataclass(frozen=True, slots=True)
class PriceBookDraft:
    """A book of `rows` that is named `name`; `diff` tells by model and class what it changes on its day."""

    name: str
    rows: tuple[ModelPrice, ...]
    diff: tuple[str, ...]

    def as_json(self) -> str:
        """Return the file: a row a line, and the hash of the rows."""
        rows = [_fields(row) for row in self.rows]
        head = {
            "name": self.name,
            "about": "A candidate, for review: nano-USD per token; multipliers as [numerator, denominator].",
            "sha256": sha256_of_rows(rows),
        }
        lines = [f"  {_json(key)}: {_json(value)}," for key, value in head.items()]
        spelled = ",\n".join(f"    {_json(row)}" for row in rows)
        return "\n".join(["{", *lines, '  "rows": [', spelled, "  ]", "}", ""])

    def write(self, path: Path) -> None:
        """Write the file; raises `OSError`."""
        path.write_text(self.as_json(), encoding="utf-8")


def candidate(book: PriceBook, source: PriceSource, *, at: datetime) -> PriceBookDraft | None:
    """Return `book` with a new price, valid from the day of `at` (UTC), of each model that `source` lists differently.

    None if it lists nothing differently. What `source` does not know stays as it is, and so do models that it alone
    knows. A part of a nano-dollar is rounded up.
    """
    today = at.astimezone(UTC).date()
    before = list(in_force(book, at=at))
    after = {_key(price): _revised(price, source, today, at) for price in before}
    if all(after[_key(price)] is price for price in before):
        return None
    diff = unified_diff(
        list(_told(before)), list(_told(after.values())),
        fromfile=short_id(book.id), tofile=source.source, lineterm="", n=0,
    )  # fmt: skip
    return PriceBookDraft(f"candidate-{today}", tuple(_rows(book, after)), tuple(diff))


def refuse_target(path: Path, *, force: bool) -> None:
    """Raise `OptionError` for a file that a candidate must not be written to: the packaged book, or, unless `force`, any that is there."""
    if path.resolve() == PACKAGED_PRICES.resolve():
        raise OptionError("--out", f"{path}, the packaged price book", "a file of your own")
    if path.exists() and not force:
        raise OptionError("--out", f"{path}, which is there already", "a new file, or --force")


def _rows(book: PriceBook, after: Mapping[Any, ModelPrice]) -> Iterator[ModelPrice]:
    """Give the rows of the book, and behind those of a model its new one; of two for a day the new one alone."""
    rows = list(book)
    for place, row in enumerate(rows):
        new = after[_key(row)]
        if row is new or row.valid_from != new.valid_from:
            yield row
        is_last = place + 1 == len(rows) or _key(rows[place + 1]) != _key(row)
        if is_last and all(new is not own for own in rows):
            yield new


def _fields(row: ModelPrice) -> dict[str, Any]:
    """Return a row of the file: whose price and since when, then the rest."""
    fields = row.model_dump(mode="json", exclude_defaults=True)
    return {name: fields[name] for name in ("provider", "model", "valid_from")} | fields


def _key(price: ModelPrice) -> tuple[str, str]:
    return price.provider, price.model


def _revised(price: ModelPrice, source: PriceSource, today: date, at: datetime) -> ModelPrice:
    """Return the price as `source` lists it, or the same one if it says nothing else."""
    theirs = source.listing(price.provider, price.model, at=at)
    if theirs is None:
        return price
    parts = _rates(price, theirs) | _multipliers(price, theirs)
    if all(getattr(price, name) == value for name, value in parts.items()):
        return price
    same = {name: getattr(price, name) for name in ModelPrice.model_fields}
    news = {"valid_from": today, "checked_on": today, "source": source.source}
    return ModelPrice.model_validate(same | parts | news)


def _rates(price: ModelPrice, theirs: Listing) -> dict[str, Any]:
    ours = listing_of(price).rates
    told = {**ours, **theirs.rates}
    base = {name: math.ceil(told[0, name]) for name in CLASSES}
    tiers = tuple(
        Tier(over_input_tokens=over, **{name: math.ceil(told.get((over, name), base[name])) for name in CLASSES})
        for over in sorted({over for over, _ in told} - {0})
    )  # fmt: skip
    return {**base, "tiers": tiers}


def _multipliers(price: ModelPrice, theirs: Listing) -> dict[str, Any]:
    tables: dict[str, dict[str, Ratio]] = {name: dict(getattr(price, name)) for name in MULTIPLIERS}
    for (name, word), times in theirs.times.items():
        own = tables[name].get(word)
        is_news = times is not None and times > 0 and times != (Fraction(*own) if own else 1)
        if times is not None and is_news:
            tables[name][word] = (times.numerator, times.denominator)
    return dict(tables)


def _told(prices: Iterable[ModelPrice]) -> Iterator[str]:
    for price in prices:
        for about, amount in listing_of(price).spelled():
            yield f"{price.provider}/{price.model} {about} {amount}"


def _json(value: object) -> str:
    return orjson.dumps(value).decode()

"""What is wrong with the tables of models and prices, as far as they tell by themselves."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date
from typing import Literal

from agentic_trading.app.models.catalogue import Catalogue, CatalogueEntry
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.models import Capability

SOON_DAYS = 30
"""A default model that retires within so many days is told of."""


@dataclass(frozen=True, slots=True)
class TableFinding:
    """Something about `model`: `wrong` is to be mended before a run, a `note` is to be known."""

    weight: Literal["wrong", "note"]
    model: str
    text: str


def inspect(catalogue: Catalogue, *, old_after_days: int, only: Collection[str] = ()) -> list[TableFinding]:
    """Hold the tables against themselves; `only` names the models (`provider/model`) to tell of, default all.

    A row that was checked more than `old_after_days` days before the catalogue's day is told of.
    """
    entries = list(catalogue)
    found = [
        *(finding for entry in entries for finding in _of_entry(entry, catalogue.today, old_after_days)),
        *_twice(catalogue),
        *_served_by_two(entries),
        *_price_without_model(catalogue),
        *_of_defaults(entries),
    ]
    return [finding for finding in found if not only or finding.model in only]


def _of_entry(entry: CatalogueEntry, today: date, old_after_days: int) -> Iterator[TableFinding]:
    for problem in _row_problems(entry.capability, today):
        yield TableFinding("wrong", entry.name, problem)
    if entry.price is None:
        yield TableFinding("wrong", entry.name, "has no price: it would be refused before every call")
    elif entry.price.checked_on > today:
        yield TableFinding(
            "wrong", entry.name, f"its price was checked on {entry.price.checked_on}, a day to come"
        )
    dates = {"row": entry.capability.checked_on}
    if entry.price is not None:
        dates["price"] = entry.price.checked_on
    for what, checked_on in dates.items():
        age = (today - checked_on).days
        if age > old_after_days:
            yield TableFinding(
                "note", entry.name, f"its {what} was checked on {checked_on}, {age:,} days ago"
            )


def _row_problems(row: Capability, today: date) -> Iterator[str]:
    if row.max_output_tokens > row.context_tokens:
        yield f"may write {row.max_output_tokens:,} tokens into a context of {row.context_tokens:,}"
    if row.retires_on and row.training_cutoff and row.retires_on < row.training_cutoff:
        yield f"retires on {row.retires_on}, before its training ended on {row.training_cutoff}"
    if row.training_cutoff and row.training_cutoff > row.checked_on:
        yield f"was trained until {row.training_cutoff}, after it was checked on {row.checked_on}"
    if row.checked_on > today:
        yield f"was checked on {row.checked_on}, a day to come"
    if row.model in row.served_as:
        yield "names itself in served_as, which is for other ids"
    for field in ("effort", "thinking", "served_as"):
        values = getattr(row, field)
        if len(set(values)) < len(values):
            yield f"names something twice in {field}"


def _twice(catalogue: Catalogue) -> Iterator[TableFinding]:
    for table in catalogue.model_tables:
        rows = Counter(f"{row.provider}/{row.model}" for row in table.rows)
        for name, number in rows.items():
            if number > 1:
                yield TableFinding(
                    "wrong", name, f"has {number} rows in {table.path}; only the last one is read"
                )


def _served_by_two(entries: list[CatalogueEntry]) -> Iterator[TableFinding]:
    """An id that two rows answer to would let one model pass for the other."""
    counted = Counter((e.capability.provider, id_) for e in entries for id_ in _ids(e.capability))
    for entry in entries:
        for id_ in entry.capability.served_as:
            if counted[entry.capability.provider, id_] > 1:
                yield TableFinding(
                    "wrong", entry.name, f"may be served as {id_}, which another row stands for"
                )


def _ids(row: Capability) -> set[str]:
    return {row.model, *row.served_as}


def _price_without_model(catalogue: Catalogue) -> Iterator[TableFinding]:
    known = {(row.provider, row.model) for row in catalogue.capabilities}
    priced = {(row.provider, row.model) for table in catalogue.price_tables for row in table.rows}
    for provider, model in sorted(priced - known):
        yield TableFinding("wrong", f"{provider}/{model}", "has a price and no row in the table of models")


def _of_defaults(entries: list[CatalogueEntry]) -> Iterator[TableFinding]:
    known = {entry.name: entry for entry in entries}
    for workflow, preset in PRESETS.items():
        name = f"{LLMProvider.ANTHROPIC}/{preset.model}"
        entry = known.get(name)
        if entry is None:
            yield TableFinding("wrong", name, f"is the default for {workflow} and has no row")
        elif entry.retired:
            told = f"is the default for {workflow} and retired on {entry.capability.retires_on}"
            yield TableFinding("wrong", name, told)
        elif entry.days_left is not None and entry.days_left <= SOON_DAYS:
            told = f"is the default for {workflow} and retires on {entry.capability.retires_on}"
            yield TableFinding("note", name, told)

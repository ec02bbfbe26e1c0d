"""Tables of models, of what is wrong with them, and of what a live check found."""

from collections.abc import Callable, Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table

from agentic_trading.cli.output import facts, heading, listing, rows, table
from agentic_trading.cli.price_tables import price_parts
from agentic_trading.cli.settings import configured
from agentic_trading.clock import SystemClock
from agentic_trading.governance.prices import ModelPrice, short_id
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capability
from agentic_trading.operate.models.catalogue import Catalogue, CatalogueEntry, TableFinding
from agentic_trading.operate.models.probes import LiveReport
from agentic_trading.operate.prices import rate_text


def load_catalogue() -> Catalogue:
    """Return today's catalogue, the tables of the configuration among its own; raises `ConfigError` and `TableError`."""
    return Catalogue.load(configured(), now=SystemClock().now())


def model_table(entries: Iterable[CatalogueEntry], catalogue: Catalogue) -> RenderableType:
    """Return a row for each model; prices are those of the catalogue's day."""
    columns: dict[str, Callable[[CatalogueEntry], str]] = {
        "provider": lambda one: one.capability.provider,
        "model": lambda one: one.capability.model,
        "in": lambda one: _price_range(one.price, "input"),
        "out": lambda one: _price_range(one.price, "output"),
        "context": lambda one: f"{one.capability.context_tokens:,}",
        "cutoff": lambda one: str(one.capability.training_cutoff or "-"),
        "last day": lambda one: str(one.capability.retires_on or "-"),
        "from": lambda one: one.origin_kind,
    }
    note = f"in, out: USD per million tokens on {catalogue.today}, book {short_id(catalogue.prices.id)}"
    return Group(listing(entries, columns, right=("in", "out", "context")), note)


def _price_range(price: ModelPrice | None, field: str) -> str:
    """Return the price of a class, from that of the shortest to that of the longest request."""
    if price is None:
        return "none"
    return "…".join(dict.fromkeys(rate_text(getattr(rates, field)) for rates in (price, *price.tiers)))


def model_details(entry: CatalogueEntry, catalogue: Catalogue) -> RenderableType:
    """Return everything of one model."""
    parts: list[RenderableType] = [heading(entry.name), facts(_model_facts(entry))]
    if entry.price is None:
        return Group(*parts, heading("No price"), "A model without a price is refused before every call.")
    files = [("source file", entry.price_origin), ("book", short_id(catalogue.prices.id))]
    title = heading(f"USD per million tokens on {catalogue.today}")
    return Group(*parts, title, price_parts(entry.price, catalogue.prices), facts(files))


def _model_facts(entry: CatalogueEntry) -> Iterator[tuple[str, str]]:
    row = entry.capability
    yield "transports", f"{', '.join(row.transports)}: the first that the schema allows"
    yield "native schema", f"{_yes(row.native_schema)}, its bounds {_yes(row.holds_bounds)}"
    yield "tools", f"strict {_yes(row.strict_tool)}, forced {_yes(row.forced_tool)}"
    yield "strict schema limits", _strict_limits(row)
    yield "JSON mode, logprobs", f"{_yes(row.json_mode)}, {_yes(row.logprobs)}"
    yield "temperature", "without thinking" if row.sampling else "not taken"
    yield "thinking", ", ".join(row.thinking) or "none"
    yield "effort", ", ".join(row.effort) or "none"
    yield "context", f"{row.context_tokens:,} tokens, at most {row.max_output_tokens:,} of them out"
    size = "byte" if row.min_bytes_per_token == 1 else f"{row.min_bytes_per_token} bytes"
    yield "token bound", f"{row.overhead_tokens:,} tokens and one for every {size}"
    yield "served as", ", ".join([row.model, *row.served_as])
    yield "training cutoff", str(row.training_cutoff or "not known")
    yield "retires", _retirement(entry)
    file = entry.origin if entry.origin_kind == "shipped" else f"{entry.origin} ({entry.origin_kind})"
    yield "source file", f"{file}, checked on {row.checked_on}"
    yield "source", row.source


def _strict_limits(row: Capability) -> str:
    """Return how much the provider takes in the strict schemas of one request."""
    limits = {"optional properties": row.most_optional, "unions": row.most_unions}
    known = [f"{limit:,} {what}" for what, limit in limits.items() if limit is not None]
    return ", ".join(known) or "none documented"


def _retirement(entry: CatalogueEntry) -> str:
    if entry.days_left is None:
        return "-"
    day = entry.capability.retires_on
    return f"retired {day}" if entry.retired else f"{day}, {entry.days_left:,} days left"


def _yes(value: bool) -> str:  # noqa: FBT001 - the value itself is spelled
    return "yes" if value else "no"


def finding_table(found: Iterable[TableFinding]) -> Table:
    """Return a row for each finding."""
    weights = {"wrong": "error", "note": "note"}
    return rows(table("", "model", "what"), ((weights[f.weight], f.model, f.text) for f in found))


def live_check_table(report: LiveReport) -> RenderableType:
    """Return a row for each thing that was checked, model by model, and what all of it cost."""
    parts: list[RenderableType] = []
    for proof in report.proofs:
        cells = ((r.about, r.told, r.seen, r.verdict, _exact_usd(r.cost_nusd)) for r in proof.lines)
        columns = table("about", "in the table", "seen", "verdict", "USD", right=("USD",))
        parts += [heading(proof.model), rows(columns, cells)]
        if proof.stopped:
            parts.append("Nothing else was sent, as the first request was not answered.")
    cost = f"{_exact_usd(report.cost_nusd)} of at most {_exact_usd(report.max_nusd)} USD"
    book = f"by the price book {short_id(report.price_book)}, address: {report.address}"
    return Group(*parts, "", f"{cost} {book}; whether the provider billed the same, its console says.")


def _exact_usd(nusd: int) -> str:
    return f"{nusd // NANO}.{nusd % NANO:09d}"

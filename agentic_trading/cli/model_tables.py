"""Tables of models, prices and cost checks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from fractions import Fraction

from rich.console import Group, RenderableType
from rich.table import Table

from agentic_trading.audit.spend import COST_FINDINGS, CostCheck, RecomputedCost
from agentic_trading.cli.output import facts, heading, listing, rows, table
from agentic_trading.cli.settings import configured
from agentic_trading.clock import SystemClock
from agentic_trading.governance.prices import ModelPrice, PriceBook, Rates, Ratio, short_id
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.limits import NANO
from agentic_trading.llm.models import Capability
from agentic_trading.operate.models.catalogue import Catalogue, CatalogueEntry, TableFinding
from agentic_trading.operate.models.live_check import LiveCheckRow, LiveReport
from agentic_trading.platform.errors import OptionError

TOKEN_CLASSES = tuple(Rates.model_fields)
"""The token classes with a price, in the order of a row."""

MULTIPLIERS = ("inference_geo", "speed", "service_tier")
"""The fields of a row with a multiplier for each word of a usage report."""


def prices_in_force(book: PriceBook, *, at: datetime) -> Iterator[ModelPrice]:
    """Yield the price of every model at `at`, in the order of the book."""
    for provider, model in dict.fromkeys((price.provider, price.model) for price in book):
        yield book.price(provider, model, at=at)


def select_prices(book: PriceBook, model: str = "", provider: str = "", *, at: datetime) -> list[ModelPrice]:
    """Return the prices at `at`: of `model` (or `provider/model`), of `provider`, or of all models.

    Raises:
        OptionError: If the provider has no price.
        UnknownModelError: If the model has no price.

    """
    prices = list(prices_in_force(book, at=at))
    of_provider = [price for price in prices if provider in {"", price.provider}]
    if not of_provider:
        allowed = ", ".join(dict.fromkeys(str(price.provider) for price in prices))
        raise OptionError("--provider", f"{provider!r}, which has no price", allowed)
    found = [price for price in of_provider if model in {"", price.model, f"{price.provider}/{price.model}"}]
    if not found:
        known = [f"{price.provider}/{price.model}" for price in of_provider]
        raise UnknownModelError(model, "price book", known)
    return found


def rate_text(nusd_per_token: Fraction | int) -> str:
    """Format nano-dollars per token as dollars per million tokens."""
    return _decimal(Fraction(nusd_per_token) / 1000)


def multiplier_text(times: Fraction) -> str:
    """Format a multiplier, such as `x1.1`."""
    return f"x{_decimal(times)}"


def _decimal(number: Fraction) -> str:
    return f"{(Decimal(number.numerator) / number.denominator).normalize():f}"


_CLASS_COLUMNS = ("input", "output", "read", "write 5m", "write 1h")


def load_book() -> PriceBook:
    """Load the shipped price book with the user's own prices. Raises `SettingsError`, `TableError`."""
    from agentic_trading.platform.tables import load_tables

    return load_tables(None, configured().prices_file).prices


def start_of_day(day: str = "") -> datetime:
    """Return the start (UTC) of a day such as 2026-11-22, or now. Raises `OptionError` if it is not a day."""
    if not day:
        return SystemClock().now()
    try:
        return datetime.combine(date.fromisoformat(day), time(), UTC)
    except ValueError:
        raise OptionError("--on", repr(day), "a day such as 2026-11-22") from None


def price_table(prices: Iterable[ModelPrice], book: PriceBook, at: datetime) -> RenderableType:
    """Return a table with a row for each price and tier."""
    cells = (
        ("" if number else f"{price.provider}/{price.model}", *row)
        for price in prices
        for number, row in enumerate(_rates(price))
    )
    drawn = rows(table("model", "requests", *_CLASS_COLUMNS, right=_CLASS_COLUMNS), cells)
    return Group(drawn, _note(book, at))


def price_details(price: ModelPrice, book: PriceBook, at: datetime) -> RenderableType:
    """Return all details of one price."""
    return Group(heading(f"{price.provider}/{price.model}"), price_parts(price, book), _note(book, at))


def price_parts(price: ModelPrice, book: PriceBook) -> RenderableType:
    """Return the rates of a price, its multipliers, its start date and its source."""
    others = (other for other in book if (other.provider, other.model) == (price.provider, price.model))
    days = ", ".join(str(other.valid_from) for other in others if other.valid_from != price.valid_from)
    return Group(
        rows(table("  requests", *_CLASS_COLUMNS, right=_CLASS_COLUMNS), _rates(price, indent="  ")),
        facts([
            *((name, _multipliers(getattr(price, name))) for name in MULTIPLIERS),
            ("since", f"{price.valid_from}{f' (other prices since {days})' if days else ''}"),
            ("checked on", str(price.checked_on)),
            ("source", price.source),
        ]),
    )


def _rates(price: ModelPrice, indent: str = "") -> Iterator[tuple[str, ...]]:
    every: list[tuple[str, Rates]] = [("base" if price.tiers else "all", price)]
    every += [(f"over {tier.over_input_tokens:,}", tier) for tier in price.tiers]
    for name, rates in every:
        yield f"{indent}{name}", *(rate_text(getattr(rates, each)) for each in TOKEN_CLASSES)


def _multipliers(words: Mapping[str, Ratio]) -> str:
    return (
        " · ".join(f"{word} {multiplier_text(Fraction(*ratio))}" for word, ratio in words.items()) or "none"
    )


def _note(book: PriceBook, at: datetime) -> str:
    return f"USD per million tokens on {at.astimezone(UTC).date()}, by input tokens. Price book: {short_id(book.id)}"


def cost_counts(found: CostCheck) -> dict[str, int]:
    """Count the records by finding, and those without a price."""
    return {each: len(found.of(each)) for each in COST_FINDINGS} | {"not priced": found.not_priced}


def cost_table(found: CostCheck) -> RenderableType:
    """Return the counts of a cost check, and a row for each cost that does not agree."""
    parts: list[RenderableType] = [facts((name, f"{n:,}") for name, n in cost_counts(found).items())]
    others = [each for each in found.records if each.finding in {"differs", "in doubt", "no such book"}]
    if others:
        columns: dict[str, Callable[[RecomputedCost], str]] = {
            "line": lambda one: str(one.line),
            "record": lambda one: one.interaction_id,
            "model": lambda one: one.model,
            "": lambda one: one.finding,
            "on record": lambda one: f"{one.on_record_nusd:,}",
            "computed": lambda one: "-" if one.computed_nusd is None else f"{one.computed_nusd:,}",
        }
        parts.append(heading("Different or not recomputed (nano-dollars)"))
        parts.append(listing(others, columns, right=("line", "on record", "computed")))
    missing = dict.fromkeys(each.price_book for each in found.of("no such book"))
    return Group(*parts, *(f"Missing price book: {book}. Pass its file with --book." for book in missing))


def load_catalogue() -> Catalogue:
    """Load today's catalogue, with the tables of the configuration. Raises `ConfigError`, `TableError`."""
    return Catalogue.load(configured(), now=SystemClock().now())


def model_table(entries: Iterable[CatalogueEntry], catalogue: Catalogue) -> RenderableType:
    """Return a table of models, with prices on the day of the catalogue."""
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
    """Return the price range of a token class, from short to long requests."""
    if price is None:
        return "none"
    return "…".join(dict.fromkeys(rate_text(getattr(rates, field)) for rates in (price, *price.tiers)))


def model_details(entry: CatalogueEntry, catalogue: Catalogue) -> RenderableType:
    """Return all details of one model."""
    parts: list[RenderableType] = [heading(entry.name), facts(_model_facts(entry))]
    if entry.price is None:
        return Group(*parts, heading("No price"), "Calls to a model without a price are refused.")
    files = [("source file", entry.price_origin), ("book", short_id(catalogue.prices.id))]
    title = heading(f"USD per million tokens on {catalogue.today}")
    return Group(*parts, title, price_parts(entry.price, catalogue.prices), facts(files))


def _model_facts(entry: CatalogueEntry) -> Iterator[tuple[str, str]]:
    row = entry.capability
    yield "transports", f"{', '.join(row.transports)} (the first that the schema allows is used)"
    yield "native schema", f"{_yes(row.native_schema)}, its bounds {_yes(row.holds_bounds)}"
    yield "tools", f"strict {_yes(row.strict_tool)}, forced {_yes(row.forced_tool)}"
    yield "strict schema limits", _strict_limits(row)
    yield "JSON mode, logprobs", f"{_yes(row.json_mode)}, {_yes(row.logprobs)}"
    yield "temperature", "accepted without thinking" if row.sampling else "not accepted"
    yield "thinking", ", ".join(row.thinking) or "none"
    yield "effort", ", ".join(row.effort) or "none"
    yield "context", f"{row.context_tokens:,} tokens, at most {row.max_output_tokens:,} of them output"
    size = "byte" if row.min_bytes_per_token == 1 else f"{row.min_bytes_per_token} bytes"
    yield "token bound", f"{row.overhead_tokens:,} tokens, plus one for every {size}"
    yield "served as", ", ".join([row.model, *row.served_as])
    yield "training cutoff", str(row.training_cutoff or "unknown")
    yield "retires", _retirement(entry)
    file = entry.origin if entry.origin_kind == "shipped" else f"{entry.origin} ({entry.origin_kind})"
    yield "source file", f"{file}, checked on {row.checked_on}"
    yield "source", row.source


def _strict_limits(row: Capability) -> str:
    """Return the provider's limits for the strict schemas of one request."""
    limits = {"optional properties": row.most_optional, "unions": row.most_unions}
    known = [f"{limit:,} {what}" for what, limit in limits.items() if limit is not None]
    return ", ".join(known) or "none documented"


def _retirement(entry: CatalogueEntry) -> str:
    if entry.days_left is None:
        return "-"
    day = entry.capability.retires_on
    return f"retired {day}" if entry.retired else f"{day}, {entry.days_left:,} days left"


def _yes(value: bool) -> str:  # noqa: FBT001 - the value itself is formatted
    return "yes" if value else "no"


def finding_table(found: Iterable[TableFinding]) -> Table:
    """Return a table of findings."""
    columns: dict[str, Callable[[TableFinding], str]] = {
        "": lambda one: "error" if one.weight == "wrong" else "note",
        "model": lambda one: one.model,
        "finding": lambda one: one.text,
    }
    return listing(found, columns)


def live_check_table(report: LiveReport) -> RenderableType:
    """Return the results of a live check by model, and its cost."""
    columns: dict[str, Callable[[LiveCheckRow], str]] = {
        "check": lambda line: line.about,
        "expected": lambda line: line.told,
        "observed": lambda line: line.seen,
        "verdict": lambda line: line.verdict,
        "USD": lambda line: _exact_usd(line.cost_nusd),
    }
    parts: list[RenderableType] = []
    for proof in report.proofs:
        parts += [heading(proof.model), listing(proof.lines, columns, right=("USD",))]
        if proof.stopped:
            parts.append("No other request was sent, because the first one was not answered.")
    cost = f"Cost: {_exact_usd(report.cost_nusd)} of at most {_exact_usd(report.max_nusd)} USD"
    book = f"by price book {short_id(report.price_book)}, server: {report.address}"
    return Group(*parts, "", f"{cost} {book}. Compare it with the bill in the provider's console.")


def _exact_usd(nusd: int) -> str:
    return f"{nusd // NANO}.{nusd % NANO:09d}"

"""Every model with its price of today, how its answers are asked for, and where each row came from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Self

from agentic_trading.app.options import OptionError
from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.models import PACKAGED_MODELS, Capabilities, Capability, DatedTable, read_table
from agentic_trading.llm.provider import Transport
from agentic_trading.structured.prompts import transport_for

PACKAGED = "packaged"

Key = tuple[LLMProvider, str]


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model: its row, its price of the day, and the files that both came from (`packaged`, or a path).

    `transport` is how the form of a JSON answer is asked for. `days_left` counts the days until the last one on which
    the model is served: 0 on that day, below 0 once it has retired, None where no such day is known.
    """

    capability: Capability
    origin: str
    price: ModelPrice | None
    price_origin: str
    transport: Transport
    days_left: int | None

    @property
    def name(self) -> str:
        """The model's name among all: `provider/model`."""
        return f"{self.capability.provider}/{self.capability.model}"

    @property
    def retired(self) -> bool:
        """Whether a live call would be refused as of the day of the catalogue."""
        return self.days_left is not None and self.days_left < 0

    def as_value(self) -> dict[str, Any]:
        """Return all of it, for JSON."""
        return {
            "provider": self.capability.provider,
            "model": self.capability.model,
            "transport": self.transport,
            "days_left": self.days_left,
            "retired": self.retired,
            "origin": self.origin,
            "capability": self.capability.model_dump(mode="json"),
            "price_origin": self.price_origin,
            "nusd_per_token": None if self.price is None else self.price.model_dump(mode="json"),
        }


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All that is known of models as of a day, in the order of the tables."""

    capabilities: Capabilities
    prices: PriceBook
    model_tables: tuple[DatedTable[Capability], ...]
    price_tables: tuple[DatedTable[ModelPrice], ...]
    now: datetime

    @classmethod
    def load(cls, models_file: Path | None, prices_file: Path | None, *, now: datetime) -> Self:
        """Read the packaged tables, and the user's own in place of or beside their rows.

        `now` fixes the prices and what has retired. Raises `TableError` that names file, row and field.
        """
        models = tuple(read_table(path, Capability) for path in _paths(PACKAGED_MODELS, models_file))
        prices = tuple(read_table(path, ModelPrice) for path in _paths(PACKAGED_PRICES, prices_file))
        capabilities = Capabilities(row for table in models for row in table.rows)
        return cls(capabilities, PriceBook(*prices), models, prices, now)

    @property
    def today(self) -> date:
        """The day (UTC) of the catalogue."""
        return self.now.astimezone(UTC).date()

    def __iter__(self) -> Iterator[CatalogueEntry]:
        origins, price_origins = _origins(self.model_tables), _origins(self.price_tables)
        for row in self.capabilities:
            key = (row.provider, row.model)
            yield CatalogueEntry(
                capability=row,
                origin=origins[key],
                price=self.price_of(row),
                price_origin=price_origins.get(key, ""),
                transport=transport_of(row),
                days_left=None if row.retires_on is None else (row.retires_on - self.today).days,
            )

    def entries(self, provider: str = "") -> list[CatalogueEntry]:
        """Return the entries of `provider`, or of all; raises `OptionError` for one that has none."""
        found = [entry for entry in self if provider in {"", entry.capability.provider}]
        if not found:
            allowed = ", ".join(sorted({str(row.provider) for row in self.capabilities}))
            raise OptionError("--provider", f"{provider!r}, which has no model", allowed)
        return found

    def of(self, name: str) -> CatalogueEntry:
        """Return the entry of `model` or `provider/model`.

        Raises `UnknownModelError` for a name that is in no row, or that several providers have.
        """
        entries = list(self)
        found = [entry for entry in entries if name in {entry.name, entry.capability.model}]
        if len(found) == 1:
            return found[0]
        known = found or entries
        raise UnknownModelError(name, "capability table", [entry.name for entry in known])

    def price_of(self, row: Capability) -> ModelPrice | None:
        """Return the price of the day, or None for a model without one."""
        try:
            return self.prices.price(row.provider, row.model, at=self.now)
        except UnknownModelError:
            return None


def transport_of(row: Capability) -> Transport:
    """Return how the model is asked for an answer that has a schema which providers can enforce."""
    builder = EnvelopeBuilder().for_general().with_instructions("Answer.")
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    envelope = builder.with_output_schema(schema).with_provider(row.provider, row.model).build()
    return transport_for(envelope, row)


def _paths(packaged: Path, own: Path | None) -> tuple[Path, ...]:
    return (packaged,) if own is None else (packaged, own)


def _origins(tables: tuple[DatedTable[Any], ...]) -> Mapping[Key, str]:
    """Return which file each model's row was taken from: the last one that names it."""
    packaged = {PACKAGED_MODELS, PACKAGED_PRICES}
    return {
        (row.provider, row.model): PACKAGED if table.path in packaged else str(table.path)
        for table in tables
        for row in table.rows
    }

"""What is known of models and prices: shipped rows, those of adapters, of files and of the configuration."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from agentic_trading.governance.prices import PACKAGED_PRICES, ModelPrice, PriceBook
from agentic_trading.llm.models import (
    PACKAGED_MODELS,
    Capabilities,
    Capability,
    DatedTable,
    read_table,
    sha256_of_rows,
)
from agentic_trading.platform.adapters import Factory, explained
from agentic_trading.platform.config import PlatformConfig
from agentic_trading.platform.provider_config import ModelConfig


def tables_of(config: PlatformConfig, factories: Mapping[str, Factory]) -> tuple[Capabilities, PriceBook]:
    """Return what is known of models and prices; reads files.

    A row of the configuration goes before one of `models_file` and `prices_file`, that before one that an adapter
    brings, and that before a shipped one. Raises `TableError` that names file, row and field, `ConfigError` for an
    adapter whose rows are none.
    """
    brought = {name: _rows_of(name, factory) for name, factory in factories.items()}
    given = {name: row.models for name, row in config.providers.items()}
    models = [
        *read_table(PACKAGED_MODELS, Capability).rows,
        *_capabilities(brought),
        *(read_table(config.models_file, Capability).rows if config.models_file else ()),
        *_capabilities(given),
    ]
    prices = [
        read_table(PACKAGED_PRICES, ModelPrice),
        *_prices("adapters", brought),
        *([read_table(config.prices_file, ModelPrice)] if config.prices_file else []),
        *_prices("config", given),
    ]
    return Capabilities(models), PriceBook(*prices)


def _rows_of(name: str, factory: Factory) -> tuple[ModelConfig, ...]:
    models = getattr(factory, "models", None)
    if not callable(models):
        return ()
    with explained("code", f"providers.{name}.adapter", name):
        return tuple(map(ModelConfig.model_validate, models()))


def _capabilities(rows: Mapping[str, Iterable[ModelConfig]]) -> Iterator[Capability]:
    return (row.capability_of(name) for name, models in rows.items() for row in models)


def _prices(book: str, rows: Mapping[str, Iterable[ModelConfig]]) -> Iterator[DatedTable[ModelPrice]]:
    """Yield the prices of these rows as a table, if there are any."""
    prices = tuple(price for name, models in rows.items() for row in models if (price := row.price_of(name)))
    if prices:
        digest = sha256_of_rows([price.model_dump(mode="json") for price in prices])
        yield DatedTable(Path(book), prices, {"name": book}, digest)

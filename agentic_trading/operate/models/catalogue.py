"""A catalogue of all models with prices and origins, and a check of the tables."""

import json
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal, Self, assert_never

from agentic_trading.files import read_utf8
from agentic_trading.governance.prices import ModelPrice, PriceBook
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.models import Capabilities, Capability, DatedTable
from agentic_trading.llm.provider import Transport
from agentic_trading.operate.choices import HOSTED
from agentic_trading.platform.config import ModelConfig, PlatformConfig
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.tables import RowOrigin, TableLayers, factories_of
from agentic_trading.structured.prompts import transport_for

PACKAGED = "packaged"

SOON_DAYS = 30
"""A default model that retires within this many days is noted."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model: its row, its current price, and their origins.

    Attributes:
        capability: The row.
        origin: The origin of the row: `packaged`, a path, the name of an adapter, or `code`.
        origin_kind: The kind of this origin.
        price: The current price. None if there is none.
        price_origin: The origin of the price. Empty if there is none.
        transport: The transport of a JSON answer.
        days_left: Days until the last day of service. Negative after it. None if no such day is known.

    """

    capability: Capability
    origin: str
    origin_kind: RowOrigin
    price: ModelPrice | None
    price_origin: str
    transport: Transport
    days_left: int | None

    @property
    def name(self) -> str:
        """The model's full name: `provider/model`."""
        return f"{self.capability.provider}/{self.capability.model}"

    @property
    def retired(self) -> bool:
        """Whether a live call would be refused on the day of the catalogue."""
        return self.days_left is not None and self.days_left < 0

    def as_value(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {
            "provider": self.capability.provider,
            "model": self.capability.model,
            "transport": self.transport,
            "days_left": self.days_left,
            "retired": self.retired,
            "origin": self.origin,
            "origin_kind": self.origin_kind,
            "capability": self.capability.model_dump(mode="json"),
            "price_origin": self.price_origin,
            "nusd_per_token": None if self.price is None else self.price.model_dump(mode="json"),
        }


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All models of the tables on one day, in the order of the tables."""

    capabilities: Capabilities
    prices: PriceBook
    layers: TableLayers
    config: PlatformConfig
    now: datetime

    @classmethod
    def load(cls, config: PlatformConfig, *, now: datetime) -> Self:
        """Read the shipped tables, and those of the configuration.

        Args:
            config: The configuration, with its adapters, files and rows.
            now: The time for prices and retirement.

        Raises:
            TableError: If a table is invalid. The error contains file, row and field.
            ConfigError: If an adapter cannot be loaded.

        """
        layers = TableLayers.read(config, factories_of(config))
        tables = layers.tables()
        return cls(tables.capabilities, tables.prices, layers, config, now)

    @property
    def today(self) -> date:
        """The day (UTC) of the catalogue."""
        return self.now.astimezone(UTC).date()

    def __iter__(self) -> Iterator[CatalogueEntry]:
        origins, price_origins = self._origins(self.layers.models), self._origins(self.layers.prices)
        for row in self.capabilities:
            key = (row.provider, row.model)
            origin_kind, origin = origins[key]
            yield CatalogueEntry(
                capability=row,
                origin=origin,
                origin_kind=origin_kind,
                price=self._price(row),
                price_origin=price_origins[key][1] if key in price_origins else "",
                transport=_transport(row),
                days_left=None if row.retires_on is None else (row.retires_on - self.today).days,
            )

    def entries(self, provider: str = "") -> list[CatalogueEntry]:
        """Return the entries of `provider`, or all. Raises `OptionError` for a provider without models."""
        found = [entry for entry in self if provider in {"", entry.capability.provider}]
        if not found:
            allowed = ", ".join(sorted({str(row.provider) for row in self.capabilities}))
            raise OptionError("--provider", f"{provider!r}, which has no model", allowed)
        return found

    def of(self, name: str) -> CatalogueEntry:
        """Return the entry of `model` or `provider/model`.

        Raises `UnknownModelError` unless exactly one matches.
        """
        entries = list(self)
        found = [entry for entry in entries if name in {entry.name, entry.capability.model}]
        if len(found) == 1:
            return found[0]
        raise UnknownModelError(name, "capability table", [entry.name for entry in found or entries])

    def _origins(
        self, layers: Mapping[RowOrigin, DatedTable[Any]]
    ) -> dict[tuple[LLMProvider, str], tuple[RowOrigin, str]]:
        """Return the origin of each model's row: the last table that contains it."""
        return {
            (row.provider, row.model): (kind, self._origin(kind, table.path, row.provider))
            for kind, table in layers.items()
            for row in table.rows
        }

    def _origin(self, kind: RowOrigin, path: Path, provider: str) -> str:
        match kind:
            case "shipped":
                return PACKAGED
            case "adapter":
                return self.config.providers[provider].adapter_of(provider)
            case "file":
                return str(path)
            case "config":
                return self.config.origin_of(f"providers.{provider}.models")
            case _:
                assert_never(kind)

    def _price(self, row: Capability) -> ModelPrice | None:
        try:
            return self.prices.price(row.provider, row.model, at=self.now)
        except UnknownModelError:
            return None


def _transport(row: Capability) -> Transport:
    """Return the model's transport for an answer with a schema that providers can enforce."""
    builder = EnvelopeBuilder().for_general().with_instructions("Answer.")
    schema = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
    envelope = builder.with_output_schema(schema).with_provider(row.provider, row.model).build()
    return transport_for(envelope, row)


def add_model(file: Path, provider: str, row: ModelConfig, *, base_url: str | None = None) -> None:
    """Append a model to a configuration file. Creates the file if it does not exist.

    Raises:
        OptionError: If the file has the model or another URL already, or cannot be extended. It is then
            unchanged.
        ConfigError: If the provider or URL is invalid. The file is then unchanged.

    """
    text = read_utf8(file) if file.exists() else ""
    added = _model_toml(file, provider, row, base_url, _provider_in(text, file, provider))
    try:
        known = tomllib.loads(text + added)["providers"][provider]
        PlatformConfig.model_validate({"providers": {provider: known}})
    except tomllib.TOMLDecodeError as e:
        was = f"{file}, where [providers.{provider}] cannot be continued at the end ({e})"
        raise OptionError("--config", was, f"this text in its place:{added}") from e
    with file.open("a", encoding="utf-8") as end:
        end.write(added)


def _provider_in(text: str, file: Path, provider: str) -> Mapping[str, Any] | None:
    """Return the table of a provider in the text of a file, or None."""
    try:
        found = tomllib.loads(text).get("providers", {}).get(provider)
    except (tomllib.TOMLDecodeError, AttributeError) as e:
        raise OptionError("--config", f"{file}, which is not valid TOML ({e})", "a configuration file") from e
    return found if isinstance(found, Mapping) else None


def _model_toml(
    file: Path, provider: str, row: ModelConfig, base_url: str | None, known: Mapping[str, Any] | None
) -> str:
    """Return the TOML lines of a row, and of its provider if the file does not have it."""
    name = json.dumps(provider, ensure_ascii=False)
    lines = [""]
    if known is None:
        lines.append(f"[providers.{name}]")
        lines += [] if provider in HOSTED else ['adapter = "openai"']
        lines += [] if base_url is None else [f"base_url = {json.dumps(base_url, ensure_ascii=False)}"]
    elif base_url not in {None, known.get("base_url")}:
        was = f"{base_url}, and {file} has {known.get('base_url', 'none')} for the provider {provider}"
        raise OptionError("--base-url", was, "the same address, or another name as --provider")
    elif any(each.get("model") == row.model for each in known.get("models", ())):
        raise OptionError("MODEL", f"{row.model!r}, which {file} has already", "a new name, or edit the file")
    price = row.price
    rates = "" if price is None else f"input = {price.input:f}, output = {price.output:f}"
    values = {"model": row.model, "source": row.source}
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    return "\n".join([
        *lines,
        f"[[providers.{name}.models]]",
        f"model = {texts['model']}",
        f"context_tokens = {row.context_tokens}",
        f"max_output_tokens = {row.max_output_tokens}",
        f"price = {{ {rates} }}  # nano-dollars per token",
        f"source = {texts['source']}",
        f"checked_on = {row.checked_on}",
        "",
    ])


@dataclass(frozen=True, slots=True)
class TableFinding:
    """A finding about a model in the tables.

    Attributes:
        weight: `wrong` must be corrected before a run. `note` is worth knowing.
        model: The model, as `provider/model`.
        text: The finding.

    """

    weight: Literal["wrong", "note"]
    model: str
    text: str


def check_tables(
    catalogue: Catalogue, *, old_after_days: int, only: Collection[str] = ()
) -> list[TableFinding]:
    """Check the tables for contradictions.

    Args:
        catalogue: The catalogue.
        old_after_days: Rows that were checked more than this many days ago are noted.
        only: The models to check, as `provider/model`. Empty checks all.

    """
    entries = list(catalogue)
    found = [
        *(finding for entry in entries for finding in _check_entry(entry, catalogue.today, old_after_days)),
        *_check_between_rows(catalogue, entries),
        *_check_defaults(entries),
    ]
    return [finding for finding in found if not only or finding.model in only]


def _check_entry(entry: CatalogueEntry, today: date, old_after_days: int) -> Iterator[TableFinding]:
    for problem in _row_problems(entry.capability, today):
        yield TableFinding("wrong", entry.name, problem)
    dates = {"row": entry.capability.checked_on}
    if entry.price is None:
        yield TableFinding("wrong", entry.name, "has no price: it would be refused before every call")
    else:
        dates["price"] = entry.price.checked_on
        if entry.price.checked_on > today:
            problem = f"its price was checked on {entry.price.checked_on}, a day to come"
            yield TableFinding("wrong", entry.name, problem)
    for what, checked_on in dates.items():
        age = (today - checked_on).days
        if age > old_after_days:
            text = f"its {what} was checked on {checked_on}, {age:,} days ago"
            yield TableFinding("note", entry.name, text)


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


def _check_between_rows(catalogue: Catalogue, entries: list[CatalogueEntry]) -> Iterator[TableFinding]:
    for table in catalogue.layers.models.values():
        for name, number in Counter(f"{row.provider}/{row.model}" for row in table.rows).items():
            if number > 1:
                text = f"has {number} rows in {table.path}, of which only the last one is read"
                yield TableFinding("wrong", name, text)

    rows = [entry.capability for entry in entries]
    ids = Counter((row.provider, id_) for row in rows for id_ in {row.model, *row.served_as})
    for entry in entries:
        for id_ in entry.capability.served_as:
            if ids[entry.capability.provider, id_] > 1:  # because one model could pass for the other
                text = f"may be served as {id_}, which another row stands for"
                yield TableFinding("wrong", entry.name, text)

    known = {(row.provider, row.model) for row in rows}
    priced = {(row.provider, row.model) for table in catalogue.layers.prices.values() for row in table.rows}
    for provider, model in sorted(priced - known):
        yield TableFinding("wrong", f"{provider}/{model}", "has a price and no row in the table of models")


def _check_defaults(entries: list[CatalogueEntry]) -> Iterator[TableFinding]:
    known = {entry.name: entry for entry in entries}
    for workflow, preset in PRESETS.items():
        name = f"{LLMProvider.ANTHROPIC}/{preset.model}"
        entry = known.get(name)
        if entry is None:
            yield TableFinding("wrong", name, f"is the default for {workflow} and has no row")
            continue
        retires_on = entry.capability.retires_on
        if entry.retired:
            yield TableFinding("wrong", name, f"is the default for {workflow} and retired on {retires_on}")
        elif entry.days_left is not None and entry.days_left <= SOON_DAYS:
            yield TableFinding("note", name, f"is the default for {workflow} and retires on {retires_on}")

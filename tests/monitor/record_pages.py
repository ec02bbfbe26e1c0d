"""Pages about records without a server, for tests of their view models."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from agentic_trading.llm import JsonFileInteractionStore
from agentic_trading.monitor.calls import CallsPage, CallsView
from agentic_trading.monitor.sources import SourceOptions, open_sources
from agentic_trading.monitor.traces import TracePage, TraceSearch, TraceView

HOSTILE: Final = '<script>alert(1)</script>"><svg onload=alert(2)>\x1b[2J\u202egnol\u2066\x00'
"""A text that would run, steer a terminal, or turn the direction of writing."""

LEGIBLE: Final = '<script>alert(1)</script>"><svg onload=alert(2)>\\x1b[2J\\u202egnol\\u2066\\x00'


async def calls_page(*stores: Path, only: str | None = None, **filters: str) -> CallsView:
    """Return the page Calls of logs or folders, of all tenants or of one."""
    async with open_sources(SourceOptions(stores, tenant=only)) as sources:
        return await CallsPage(sources).page(filters)


async def trace_or_search(wanted: str, *stores: Path, tenant: str | None = None) -> TraceView | TraceSearch:
    """Return the page Trace of an id."""
    async with open_sources(SourceOptions(stores, tenant=tenant)) as sources:
        return await TracePage(sources).page(wanted)


async def trace_page(wanted: str, *stores: Path, tenant: str | None = None) -> TraceView:
    """Return the page of the chain of an id."""
    page = await trace_or_search(wanted, *stores, tenant=tenant)
    assert isinstance(page, TraceView), page
    return page


async def add(path: Path, *records: Any) -> Path:
    """Add records to a log, and return its path."""
    async with aclosing(JsonFileInteractionStore(path)) as store:
        for record in records:
            await (store.store(record) if hasattr(record, "envelope") else store.record(record))
    return path


def facts_of(facts: Any) -> Mapping[str, str]:
    """Return the texts of facts by name."""
    return {fact.name: fact.text for fact in facts}


async def in_thread(work: Any, *args: Any) -> Any:
    """Run blocking work of a test in a thread."""
    return await asyncio.to_thread(work, *args)

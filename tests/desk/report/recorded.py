"""Sessions on disk for tests of their reports. Tests read them, and change only copies."""

import json
from pathlib import Path
from typing import Any

from agentic_trading.desk.inference import rate_for
from agentic_trading.desk.report.assumptions import ReportTerms
from agentic_trading.desk.report.page import html_of, page_of
from agentic_trading.desk.report.record import RunOnRecord
from tests.flows.sessions import FAULTS

SMOLLM2: dict[str, Any] = {
    "data": ("btcusdt-5m",),
    "provider": "recorded",
    "recorded_from": Path("smollm2"),
    "bars": 300,
    "warm_up": 311,
}
FAULTY: dict[str, Any] = {"data": ("btcusdt-5m",), "inject": FAULTS, "seed": "5", "bars": 900}
TWO: dict[str, Any] = {"bars": 700}
PORTFOLIO: dict[str, Any] = {"data": ["sp500-sample"], "bars": 160}


def priced_rules(folder: Path) -> Path:
    """Write a price book in which the rules have a price, and return it."""
    row: dict[str, Any] = {
        "provider": "rules",
        "model": "rules-1",
        "valid_from": "2020-01-01",
        "input": 3000,
        "output": 15000,
        "cache_read": 300,
        "cache_write_5m": 3750,
        "cache_write_1h": 6000,
        "inference_geo": {},
        "speed": {},
        "service_tier": {},
        "source": "a test",
        "checked_on": "2026-11-22",
    }
    path = folder / "prices.json"
    path.write_text(json.dumps({"name": "own", "rows": [row]}))
    return path


def page_html(run: RunOnRecord, terms: ReportTerms | None = None) -> str:
    """Return the page of a run as text."""
    return html_of(page_of(run, terms or ReportTerms(rate_for(run.currency))))

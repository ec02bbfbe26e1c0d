"""What is asked and decided does not change unseen, and its numbers are those of the independent script."""

import json
import math
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.analysis.analyst import MEASURES, digits_of, layer_evidence
from agentic_trading.desk.analysis.judgement import Layer
from agentic_trading.desk.analysis.portfolio_context import TrackRecord
from agentic_trading.desk.market.bar import Timeframe
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketView
from tests.golden.analysis.make_golden import FILE, golden

MARKET = Path(__file__).parents[1] / "market"
MOMENTS = {
    "btcusdt-2023-03-21T1000.json": "2023-03-21T10:00:00Z",
    "btcusdt-2023-03-28T1835.json": "2023-03-28T18:35:00Z",
}


@cache
def evidence_at(moment: str) -> dict[Layer, Any]:
    """Return the evidence of BTCUSDT as of a moment, without a record."""
    view, until = MarketView("BTCUSDT"), datetime.fromisoformat(moment)
    for bar in load_sample("btcusdt-5m"):
        if bar.close_time <= until:
            view.push(bar, as_of=until)
    return layer_evidence(view.snapshot(until), TrackRecord(view.decision))


def same(measure: str, one: object, other: object) -> bool:
    """Return whether two values are equal, numbers in as many digits as are given."""
    if isinstance(one, int | float) and isinstance(other, float) and other:
        unit = 10.0 ** (math.floor(math.log10(abs(other))) + 1 - digits_of(measure))
        return abs(one - other) <= unit / 2 * (1 + 1e-3)
    return one == other


@pytest.mark.parametrize(
    "part", ["prompt_version", "published_sha256", "asked_sha256", "context", "evidence", "answer", "decided"]
)
def test_golden_parts_are_unchanged(part: str) -> None:
    assert golden()[part] == json.loads(FILE.read_text(encoding="utf-8"))[part]


@pytest.mark.parametrize("file", list(MOMENTS))
@pytest.mark.parametrize("layer", list(MEASURES))
def test_evidence_rows_match_independent_script(file: str, layer: Layer) -> None:
    content = evidence_at(MOMENTS[file])[layer]
    computed = json.loads((MARKET / file).read_text(encoding="utf-8"))[layer]["timeframes"]

    frames = [frame for frame in Timeframe if frame in computed and frame is not Timeframe.M5]
    for measure in MEASURES[layer]:
        expected = [computed[frame].get(measure) for frame in frames]
        row = content[measure]
        assert all(same(measure, *pair) for pair in zip(row, expected, strict=False)), measure
        assert not any(value is not None for value in expected[len(row) :]), measure

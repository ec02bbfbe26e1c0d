"""Everything in the layers is what an independent script computed from the same file.

Tolerance: the rounding of the snapshot and nothing more. A price may be off by half a unit of its eighth
digit, anything else by half a unit of its fifth, plus 1e-9 of the value for the order of floating-point sums
(1e-8 for MACD and its parts, small differences of large prices).
"""

import json
import math
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.analysis.judgement import Direction, Layer
from agentic_trading.desk.analysis.portfolio_context import TrackRecord
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketView
from tests.desk.market.bars import sample
from tests.golden.market.make_golden import golden

Layers = dict[str, dict[str, Any]]
Same = Callable[[str, object, object], bool]

HERE = Path(__file__).parent
MOMENTS = {
    "btcusdt-2023-03-21T1000.json": "2023-03-21T10:00:00Z",
    "btcusdt-2023-03-24T1405.json": "2023-03-24T14:05:00Z",
    "btcusdt-2023-03-28T1835.json": "2023-03-28T18:35:00Z",
}
RATIO_ENDINGS = ("_atr", "_pct", "_percentile")
RATIOS = {
    "trades_z", "volume_z", "correlation", "beta", "other_leads", "own_leads",
    "profit_factor", "sharpe", "sortino", "calmar", "runs_z", "last_pct", "volume_skew", "rsi_14", "adx_14", "plus_di_14", "minus_di_14", "percent_b", "vol_of_vol", "rr",
    "stochastic_k", "stochastic_d", "trix_15", "obv_slope", "mfi_14",
}  # fmt: skip


@cache
def layers_at(moment: str) -> Layers:
    view, other, until = MarketView("BTCUSDT"), MarketView("ETHUSDT"), datetime.fromisoformat(moment)
    track, closes = TrackRecord(view.decision), list[float]()
    for bar, other_bar in zip(sample(), load_sample("ethusdt-5m"), strict=True):
        if bar.close_time > until:
            break
        other.push(other_bar, as_of=until)
        for closed in view.push(bar, as_of=until):
            if closed.bar.timeframe is view.decision:
                at, price = closed.bar.close_time, float(closed.bar.close)
                track.see(at, price)
                closes.append(price)
                if len(closes) > 6 and (len(closes) - 1) % 3 == 0:
                    up = price > closes[-7]
                    track.add_forecast(at, Direction.BULLISH if up else Direction.BEARISH, price)
    snapshot = view.snapshot(until, reference=other.reference_market(until))
    return {**snapshot.layer_inputs(), "system": track.evidence()}


def expected(file: str) -> Layers:
    content: Layers = json.loads((HERE / file).read_text(encoding="utf-8"))
    return content


def differences(one: object, other: object, same: Same, name: str = "", path: str = "") -> Iterator[str]:
    """Yield each place where two trees of JSON differ; `same` judges leaves by the name of their key."""
    if isinstance(one, dict) and isinstance(other, dict) and set(one) == set(other):
        for key in one:
            yield from differences(one[key], other[key], same, key, f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from differences(first, second, same, name, f"{path}[{place}]")
    elif not same(name, one, other):
        yield f"{path}: {one!r} is not {other!r}"


def as_rounded(name: str, ours: object, golden: object) -> bool:
    if isinstance(ours, float) and isinstance(golden, float):
        digits = 5 if name.endswith(RATIO_ENDINGS) or name in RATIOS else 8
        unit = 10.0 ** (math.floor(math.log10(abs(golden))) + 1 - digits) if golden else 0.0
        noise = 1e-8 if name.startswith("macd") else 1e-9
        return abs(ours - golden) <= unit / 2 + noise * abs(golden)
    return type(ours) is type(golden) and ours == golden


def as_computed(_name: str, one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("file", list(MOMENTS))
@pytest.mark.parametrize("layer", [layer for layer in Layer if layer != Layer.SYSTEM])
def test_layers_match_independent_script(file: str, layer: str) -> None:
    content = layers_at(MOMENTS[file])[layer]
    named = {**content, "not_available": sorted(content["not_available"])}

    assert list(differences(named, expected(file)[layer], as_rounded)) == []


@pytest.mark.parametrize("file", list(MOMENTS))
def test_track_record_matches_independent_script(file: str) -> None:
    assert list(differences(layers_at(MOMENTS[file])["system"], expected(file)["system"], as_rounded)) == []


@pytest.mark.parametrize("file", list(MOMENTS))
def test_golden_file_matches_script_output(file: str) -> None:
    fresh = json.loads(json.dumps(golden()[file], default=float))

    assert list(differences(fresh, expected(file), as_computed)) == []


@pytest.mark.parametrize("script", ["make_golden.py", "columns.py", "flows.py", "shapes.py"])
def test_golden_script_imports_no_package_code(script: str) -> None:
    text = (HERE / script).read_text(encoding="utf-8")

    assert "import agentic_trading" not in text
    assert "from agentic_trading" not in text


def test_last_digit_difference_is_found() -> None:
    assert as_rounded("close", 27_261.07, 27_261.07)
    assert not as_rounded("close", 27_261.08, 27_261.07)
    assert as_rounded("rsi_14", 51.234, 51.23449)
    assert not as_rounded("rsi_14", 51.235, 51.23449)


@pytest.mark.parametrize(
    "other", [{}, {"a": [1.0]}, {"a": [1.0, 2.1]}, {"a": [1.0, 2.0], "b": 3}, {"a": 1.0}]
)
def test_shape_difference_is_found(other: object) -> None:
    assert list(differences({"a": [1.0, 2.0]}, other, as_computed)) != []

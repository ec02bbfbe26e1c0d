"""The benchmark of a fleet's call judges the CPU of its worker, and its clocks stand at steps that exist."""

import inspect
from pathlib import Path

import pytest

from agentic_trading.platform.settings import load_config
from benchmarks import floor
from benchmarks.fleet import MOST_MS, Row, judged, write_config
from benchmarks.fleet_provider import MODEL, STEPS, instant


def row(cpu_ms: float, *, wrong: int = 0) -> Row:
    return Row("a way", 16, [1.0, 2.0, 9.0], [cpu_ms, cpu_ms, 100.0], wrong)


def test_row_has_wait_quantiles_and_median_cpu() -> None:
    one = row(1.5)

    assert (one.quantile(0.5), one.quantile(0.99), one.cpu) == (2.0, 9.0, 1.5)


@pytest.mark.parametrize(
    ("cpu_ms", "wrong", "holds"),
    [(2 * MOST_MS, 0, True), (2 * MOST_MS + 0.01, 0, False), (1.0, 1, False)],
)
def test_scaled_cpu_and_wrong_answers_decide_verdict(cpu_ms: float, wrong: int, *, holds: bool) -> None:
    floors_us = [2.0 * floor.REFERENCE_US] * 3

    assert judged([row(99.0), row(cpu_ms)], [row(1.0), row(1.0, wrong=wrong)], floors_us) is holds


def test_each_timed_step_exists() -> None:
    for owner, step in STEPS:
        assert inspect.iscoroutinefunction(getattr(owner, step))


def test_benchmark_configuration_is_loadable(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path / "here.toml"))

    assert config.providers["instant"].models[0].model == MODEL
    assert callable(instant)

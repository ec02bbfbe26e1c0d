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


def test_a_row_has_quantiles_of_its_waits_and_the_median_of_its_rounds() -> None:
    one = row(1.5)

    assert (one.quantile(0.5), one.quantile(0.99), one.cpu) == (2.0, 9.0, 1.5)


@pytest.mark.parametrize(
    ("cpu_ms", "wrong", "holds"),
    [(2 * MOST_MS, 0, True), (2 * MOST_MS + 0.01, 0, False), (1.0, 1, False)],
)
def test_the_worker_on_a_machine_of_half_the_speed_and_wrong_answers_are_judged(
    cpu_ms: float, wrong: int, *, holds: bool
) -> None:
    floors_us = [2.0 * floor.REFERENCE_US] * 3

    assert judged([row(99.0), row(cpu_ms)], [row(1.0), row(1.0, wrong=wrong)], floors_us) is holds


def test_each_step_that_is_timed_exists() -> None:
    for owner, step in STEPS:
        assert inspect.iscoroutinefunction(getattr(owner, step))


def test_the_configuration_is_one_of_the_package(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path / "here.toml"))

    assert config.providers["instant"].models[0].model == MODEL
    assert callable(instant)

"""What cannot repeat itself is refused, and what was promised is not claimed where it was not kept."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from agentic_trading.governance.rules import ClockMode, determinism_problem
from agentic_trading.llm.envelope import DeterminismLevel, LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.models import Capabilities, Capability
from tests.build import NOW, envelope

CAPABILITIES = Capabilities.load()
SEED = CAPABILITIES.of(LLMProvider.ANTHROPIC, "claude-sonnet-4-5-20250929")
TODAYS = CAPABILITIES.of(LLMProvider.ANTHROPIC, "claude-sonnet-5-5")
LAST_DAY = date(2026, 11, 30)
MODES: list[ClockMode] = ["backtest", "paper", "shadow", "live", "replay"]


def problem(
    capability: Capability = TODAYS, *, mode: ClockMode = "live", today: date = LAST_DAY, **changes: Any
) -> FailureReason | None:
    return determinism_problem(envelope(**changes), capability, mode=mode, today=today)


@pytest.mark.parametrize("mode", ["backtest", "replay"])
def test_simulated_mode_requires_as_of(mode: ClockMode) -> None:
    found = problem(mode=mode)

    assert found
    assert (found.category, found.recoverable) == (FailureKind.NOT_ALLOWED, False)
    assert "as_of" in found.description


@pytest.mark.parametrize("mode", MODES)
def test_as_of_runs_in_every_mode(mode: ClockMode) -> None:
    assert problem(mode=mode, as_of=NOW) is None


@pytest.mark.parametrize("mode", ["paper", "shadow", "live"])
def test_live_modes_need_no_as_of(mode: ClockMode) -> None:
    assert problem(mode=mode) is None


def test_replay_only_allows_no_live_call() -> None:
    found = problem(determinism=DeterminismLevel.REPLAY_ONLY)

    assert found
    assert found.category is FailureKind.REPLAY_MISS


def test_greedy_requires_temperature_support() -> None:
    found = problem(TODAYS, determinism=DeterminismLevel.GREEDY)

    assert found
    assert found.category is FailureKind.NOT_ALLOWED
    assert "allows determinism pinned, recorded, replay_only" in found.description
    assert problem(SEED, determinism=DeterminismLevel.GREEDY) is None


def test_greedy_rejects_thinking_budget() -> None:
    found = problem(SEED, determinism=DeterminismLevel.GREEDY, budget={"thinking_budget": 1024})

    assert found
    assert "thinking budget of 0" in found.description


def test_unsupported_temperature_is_not_refused() -> None:
    assert problem(TODAYS, temperature=0.7) is None


@pytest.mark.parametrize("level", [DeterminismLevel.PINNED, DeterminismLevel.GREEDY])
def test_model_is_refused_after_retirement_date(level: DeterminismLevel) -> None:
    assert problem(SEED, determinism=level, today=LAST_DAY) is None

    found = problem(SEED, determinism=level, today=date(2026, 12, 1))

    assert found
    assert found.category is FailureKind.NOT_ALLOWED
    assert "retired on 2026-11-30" in found.description


def test_retirement_also_holds_in_backtest() -> None:
    assert problem(SEED, mode="backtest", today=date(2026, 12, 1), as_of=datetime(2026, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    ("asked", "changes", "sampling", "level"),
    [
        ("pinned", {}, False, "pinned"),
        ("pinned", {}, True, "greedy"),
        ("pinned", {"temperature": 0.5}, True, "pinned"),
        ("pinned", {"as_of": NOW}, False, "pinned"),
        ("greedy", {}, True, "greedy"),
        ("recorded", {}, False, "pinned"),
        ("recorded", {}, True, "greedy"),
        ("recorded", {"as_of": NOW}, False, "recorded"),
        ("recorded", {"as_of": NOW}, True, "recorded"),
    ],
)
def test_accepted_answer_reports_kept_level(
    asked: str, changes: dict[str, Any], level: str, *, sampling: bool
) -> None:
    asked_for = envelope(determinism=asked, **changes)

    assert asked_for.level(accepted=True, sampling_applied=sampling) == level
    assert asked_for.is_cacheable is (level == "recorded")


@pytest.mark.parametrize(("sampling", "level"), [(False, "pinned"), (True, "greedy")])
def test_rejected_answer_is_never_recorded(level: str, *, sampling: bool) -> None:
    asked_for = envelope(determinism="recorded", as_of=NOW)

    assert asked_for.level(accepted=False, sampling_applied=sampling) == level


@pytest.mark.parametrize(
    ("asked", "level"),
    [("pinned", "recorded"), ("recorded", "recorded"), ("replay_only", "replay_only")],
)
def test_replayed_answer_gets_replay_level(asked: str, level: str) -> None:
    assert envelope(determinism=asked).replayed_level == level


def test_recorded_level_allows_live_answer() -> None:
    assert problem(determinism=DeterminismLevel.RECORDED, as_of=NOW) is None

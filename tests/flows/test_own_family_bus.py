"""A strategy family of an installed package over a bus, whose workers do not have the package."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from agentic_trading.canonical import exact_bytes
from agentic_trading.cli.exits import ExitCode
from agentic_trading.desk.planning.families import drop_family
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.providers.offline import stand_in_usage
from agentic_trading.platform.adapters import ProviderContext
from tests.desk.cli.test_own_families import install
from tests.flows.fleet import attempts_in, command, make_topics, priced_model, records_in, sent_by
from tests.own_package import forget
from tests.worker_processes import RunningWorker, worker

RUN: Final = (
    "run", "--data", "sp500-sample", "--bars", 145, "--rounds", 3, "--family", "near_high", "--budget-usd", 1,
)  # fmt: skip
NAMED: Final = ("--family", "near_high")
SETS: Final[Sequence[Mapping[str, Any]]] = [
    {"high_days": 20, "trend_days": trend, "n_stocks": stocks, "stop_loss": 0.08, "resample": "M"}
    for trend, stocks in ((10, 10), (20, 10), (10, 5))
]
"""By round. The second set breaks a rule of the family: the mean must be shorter than the high."""

MODELS: Final = 'mode = "backtest"\n' + priced_model("planning", "tests.flows.test_own_family_bus:answering")

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.parametrize("bus", ["redis"], indirect=True),
]


class _Choosing:
    """A model that chooses a set of `near_high`, and cannot see the rules of the family."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        number = int(request.envelope.context["round"])
        params = {"strategy_type": "near_high", **SETS[number - 1]}
        text = exact_bytes({"reasoning": "x" * 60, "params": params}).decode()
        return ModelResponse(
            text=text,
            stop_reason="end_turn",
            usage=stand_in_usage(request, text),
            model=request.envelope.model,
        )

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None:
        pass


def answering(_context: ProviderContext) -> Provider:
    """Return the provider of a worker."""
    return _Choosing()


@pytest.fixture(autouse=True)
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package for this process only."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(folder)
    install(folder)
    yield
    forget("near_high")
    drop_family("near_high")


@pytest.fixture
def without_package(config: Path, tmp_path: Path) -> Iterator[RunningWorker]:
    """Give a worker whose environment does not have the package, and which serves a model."""
    text = config.read_text("utf-8").replace('mode = "backtest"\n', "")
    config.write_text(MODELS + text, encoding="utf-8")
    make_topics(config)
    with worker(tmp_path / "logs", "w1", "--config", str(config)) as one:
        one.is_ready()
        yield one


def test_call_works_and_the_planner_checks_the_rules(
    config: Path, without_package: RunningWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "session"

    code = command(*RUN, "--config", config, "--record", "--yes", "--out", out)

    assert code == ExitCode.DONE
    sent = sent_by(tmp_path / "logs" / "w1")
    assert sorted(sent) == sorted(attempts_in(out))  # each answer that was paid is on record here
    assert len(sent) == 3
    kinds = [line.get("kind", "call") for line in records_in(out)]
    assert [kind for kind in kinds if kind == "call" or kind.startswith(("generation", "plan"))] == [
        "call", "generation.proposed", "generation.accepted",
        "call", "generation.rejected",
        "call", "generation.proposed", "generation.accepted",
        "plan.chosen",
    ]  # fmt: skip
    (refused,) = (line for line in records_in(out) if line.get("kind") == "generation.rejected")
    assert (refused["body"]["round"], refused["body"]["by"]) == (2, "rules")
    assert "trend_days (20) must be less than high_days (20)" in refused["body"]["detail"]
    capsys.readouterr()
    assert command("trace", "why", refused["id"], "--store", out) == ExitCode.DONE
    assert "trend_days (20) must be less" in capsys.readouterr().out
    for workers in (1, 8):
        assert command("replay", "run", out, *NAMED, "--workers", workers) == ExitCode.DONE
    assert without_package.ends() == 0


@pytest.mark.soak
def test_rules_of_a_worker_without_the_package_refuse_the_call(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_topics(config)
    out = tmp_path / "session"
    with worker(tmp_path / "logs", "w1", "--config", str(config)) as one:
        one.is_ready()
        code = command(*RUN, "--config", config, "--provider", "rules", "--out", out)
        said = " ".join(capsys.readouterr().err.split())
        assert one.ends() == 0

    calls = [line for line in records_in(out) if "result" in line]
    assert calls
    for call in calls:
        failure = call["result"]["failure"]
        assert failure["category"] == "invalid_request"
        assert "the strategy family 'near_high'" in json.dumps(failure)
        assert call["result"]["cost_nusd"] == 0
    assert (code, re.search("this process has not loaded its package", said) is not None) == (
        ExitCode.BAD_INPUT,
        True,
    ), said
    assert not [line for line in records_in(out) if line.get("kind") == "generation.proposed"]

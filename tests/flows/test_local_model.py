"""A session of a real small model on this machine: recorded, counted, and played again bit for bit."""

from pathlib import Path

import pytest

from agentic_trading.desk.session.options import WARM_UP_BARS
from agentic_trading.desk.session.replay import replay
from agentic_trading.llm.envelope import LLMProvider
from tests.desk.agents.trading import Asking, named, ran_with
from tests.flows.sessions import calls_in, kept_in, ran
from tests.local_model import weights_or_skip

CALLS = 1


@pytest.fixture
def weights_folder() -> Path:
    return weights_or_skip().parent


@pytest.mark.soak
@pytest.mark.timeout(300)  # a call takes half a minute on an idle core
async def test_local_model_session_replays_without_model(weights_folder: Path, tmp_path: Path) -> None:
    report = await ran(
        tmp_path / "out",
        data=("btcusdt-5m",),
        bars=300,
        warm_up=WARM_UP_BARS,
        provider="local",
        max_calls=CALLS,
        workers=1,
        weights_folder=weights_folder,
    )
    again = await replay(report.log.parent, workers=8)

    asked = [call for call in calls_in(await kept_in(report.log)) if call.result.dispatched_at]
    assert again.identical
    assert (report.provider, report.cost_nusd, report.sent) == ("local", 0, CALLS)
    assert report.accepted * 3 >= CALLS
    assert {call.envelope.provider for call in asked} == {LLMProvider.LOCAL}
    assert all(call.result.input_tokens > 1_000 for call in asked if call.result.reading)
    assert all(call.result.failure for call in asked if not call.result.success)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_local_model_answers_own_agent(weights_folder: Path, tmp_path: Path) -> None:
    terms = {"provider": "local", "max_calls": 2, "workers": 1, "weights_folder": weights_folder}
    report = await ran_with(tmp_path / "out", Asking, data=("btcusdt-5m",), bars=60, **terms)

    assert (report.provider, report.sent) == ("local", 2)
    for workers in (1, 8):
        again = await replay(report.log.parent, workers=workers, agent=await named(Asking))
        assert (again.identical, again.misses) == (True, 0)

"""The recording that ships with the package is what `make run` says it is: a real model's session, played anywhere."""

from pathlib import Path

import pytest

from agentic_trading.desk.session.options import WARM_UP_BARS
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.run_setup import session_folder, shipped_names
from agentic_trading.operate.session_folder import SessionFolder
from tests.flows.sessions import calls_in, kept_in, ran

NAME = Path("smollm2")
FAULTS = Path("faults")
README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")


def test_two_recordings_are_shipped() -> None:
    assert shipped_names() == [str(FAULTS), str(NAME)]


@pytest.fixture
def digest() -> str | None:
    """Return the digest of the decision log as it was recorded."""
    with session_folder(NAME) as folder:
        return SessionFolder(folder).read_manifest().digest


async def test_shipped_recording_replays_identically(digest: str | None, tmp_path: Path) -> None:
    report = await ran(
        tmp_path / "out",
        data=("btcusdt-5m",),
        bars=300,
        warm_up=WARM_UP_BARS,
        provider="recorded",
        recorded_from=NAME,
    )

    again = await replay(report.log.parent, workers=8)

    assert digest
    assert (report.digest, again.identical) == (digest, True)
    assert (report.provider, report.model, report.cost_nusd) == ("local", "smollm2-135m", 0)
    assert report.accepted >= report.sent / 3 > 0
    assert report.fills > 0


async def test_fault_recording_shows_broken_answers(tmp_path: Path) -> None:
    report = await ran(
        tmp_path / "out",
        data=("btcusdt-5m",),
        bars=220,
        warm_up=WARM_UP_BARS,
        provider="recorded",
        recorded_from=FAULTS,
    )
    calls = calls_in(await kept_in(report.log))
    read = [call.result.reading for call in calls if call.result.reading]

    assert report.data[0].companion == "ETHUSDT, from ethusdt-5m of the package, until 2023-03-21 20:15"
    assert report.injected == {
        "cut": {"asked again, then accepted": 1},
        "malformed": {"mended, then accepted": 4, "asked again, then accepted": 2, "no decision": 2},
        "refusal": {"no decision": 1},
    }
    assert {fix.kind for each in read for fix in each.fixes} == {"missing_comma", "bare_key", "prose"}
    assert any(
        error.endswith('is not of type "string"') for call in calls for error in call.result.validation_errors
    )
    [shown] = [call.trace_id for call in calls if call.trace_id in README and call.result.success]
    assert [call.result.success for call in calls if call.trace_id == shown] == [False, True]
    assert report.fills > 0

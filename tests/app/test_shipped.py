"""The recording that ships with the package is what `make run` says it is: a real model's session, played anywhere."""

from pathlib import Path

import pytest

from agentic_trading.app.options import WARM_UP_BARS
from agentic_trading.app.replay import replay
from agentic_trading.app.session_folder import SessionFolder, session_folder, shipped_names
from tests.flows.sessions import ran

NAME = Path("smollm2")


def test_there_is_a_recording_of_the_small_model() -> None:
    assert shipped_names() == [str(NAME)]


@pytest.fixture
def digest() -> str | None:
    """Return the digest of the decision log as it was recorded."""
    with session_folder(NAME) as folder:
        return SessionFolder(folder).read_manifest().digest


async def test_played_again_it_decides_what_it_decided_then(digest: str | None, tmp_path: Path) -> None:
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

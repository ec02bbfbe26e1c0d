"""A session that asks Claude through the real SDK, at a stub of the Messages API in a process of its own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.providers import UnusableProviderError
from tests.desk.session.asking import options
from tests.flows.sessions import calls_in, kept_in
from tests.stubs.running import page_of, serving

pytestmark = pytest.mark.timeout(30)  # the first of them loads the SDK

SONNET = "claude-sonnet-5-5"


@pytest.fixture(scope="module")
def stub() -> Iterator[str]:
    """Return the address of a stub that answers whatever it is asked with an order nobody wanted."""
    with serving("tests.stubs.stubborn_api") as address:
        yield address


def asking(out: Path, url: str, *, key: str = "good-key", **changes: Any) -> RunOptions:
    asked = {"provider": "anthropic", "model": SONNET, "keys": {"anthropic": key}, "base_url": url}
    return options(out, **{**asked, **changes})


async def ran(asked: RunOptions) -> RunReport:
    return await run_session(asked, on_progress=lambda _progress: None)


async def test_session_cost_matches_the_invoice(tmp_path: Path) -> None:
    with serving("tests.stubs.stubborn_api") as url:
        report = await ran(asking(tmp_path / "out", url, max_calls=5))
        invoice = page_of(url, "/invoice")

    assert report.sent == 5
    assert report.cost_nusd > 0
    assert report.cost_nusd == invoice["total_nusd"]
    assert (await replay(report.log.parent, workers=8)).identical


async def test_wrong_key_is_refused_before_writing(stub: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableProviderError, match="auth_error") as refused:
        await ran(asking(tmp_path / "out", stub, key="sesame-open-sesame"))

    assert "sesame" not in str(refused.value)
    assert not (tmp_path / "out").is_dir()


async def test_unreachable_server_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(UnusableProviderError, match=r"server_error.*127\.0\.0\.1"):
        await ran(asking(tmp_path / "out", "http://127.0.0.1:9"))

    assert not (tmp_path / "out").is_dir()


async def test_unknown_model_ends_session_at_first_call(stub: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableProviderError, match=r"invalid_request.*--resume"):
        await ran(asking(tmp_path / "out", stub, model="claude-opus-5"))

    assert len(calls_in(await kept_in(tmp_path / "out" / "interactions.jsonl"))) == 1

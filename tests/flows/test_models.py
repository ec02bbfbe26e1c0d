"""A session that asks a model over the network: recorded, limited, gone on with, and played again without it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.providers import UnusableProviderError
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.tables import Tables
from tests.desk.session.asking import OWN_MODEL, options, own_rows, own_tables
from tests.flows.served import answers_of_the_rules, served
from tests.flows.sessions import LOADED, calls_in, decided, kept_in

pytestmark = pytest.mark.timeout(30)  # the first of them loads the SDK

DATA = "btcusdt-5m"


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Return the shipped tables with a row for the model that each test asks."""
    return own_tables(tmp_path)


@pytest.fixture
async def answers(tables: Tables) -> Mapping[str, str]:
    """Return what the rules answer in the session that each test runs."""
    return await answers_of_the_rules(bars={DATA: LOADED[DATA]}, most_bars=450, tables=tables)


def asking(tmp_path: Path, url: str, **changes: Any) -> RunOptions:
    models, prices = own_rows(tmp_path)
    own = {"provider": "openai", "base_url": url, "models_file": models, "prices_file": prices}
    return options(tmp_path / "out", **{**own, **changes})


async def ran(asked: RunOptions) -> RunReport:
    return await run_session(asked, on_progress=lambda _progress: None)


async def test_model_session_replays_without_model(answers: Mapping[str, str], tmp_path: Path) -> None:
    with served(answers) as server:
        report = await ran(asking(tmp_path, server.url))

    again = await replay(report.log.parent, workers=8)

    assert server.asked == report.sent == report.accepted > 3
    assert (report.provider, report.model) == ("openai", OWN_MODEL)
    assert report.cost_nusd == report.sent * (1000 * 1000 + 100 * 2000)
    assert again.identical
    assert again.answered == report.sent


async def test_manifest_names_model_and_hides_host(answers: Mapping[str, str], tmp_path: Path) -> None:
    with served(answers) as server:
        report = await ran(asking(tmp_path, server.url, max_calls=2))

    manifest = json.loads((report.log.parent / "run.json").read_text())
    assert (manifest["answers"], manifest["provider"], manifest["model"]) == ("openai", "openai", OWN_MODEL)
    assert (manifest["base_url"], manifest["max_calls"]) == ("http://…/v1", 2)
    assert "127.0.0.1" not in json.dumps(manifest)


async def test_rejected_answers_are_retried_and_counted(tmp_path: Path) -> None:
    with served({}) as server:
        report = await ran(asking(tmp_path, server.url, max_calls=6))

    assert server.asked == report.sent == 6
    assert report.accepted == 0
    assert report.attempts_by_outcome["parsing_error"] == 6
    assert set(report.no_decisions["analysis"]) == {"parsing_error", "budget_exhausted"}
    assert (await replay(report.log.parent)).identical


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "auth_error"), (402, "billing"), (404, "invalid_request")]
)
async def test_permanently_refused_first_call_ends_session(status: int, kind: str, tmp_path: Path) -> None:
    with served({}, refuses=status) as server:
        with pytest.raises(UnusableProviderError, match=f"{kind}.*--resume"):
            await ran(asking(tmp_path, server.url))

        assert server.asked == 1
    [call] = calls_in(await kept_in(tmp_path / "out" / "interactions.jsonl"))
    assert call.result.failure is not None
    assert call.result.failure.category == kind


async def test_unreachable_server_ends_session(tmp_path: Path) -> None:
    with served({}) as gone:
        pass

    with pytest.raises(UnusableProviderError, match=r"server_error.*127\.0\.0\.1"):
        await ran(asking(tmp_path, gone.url))

    assert (
        len({
            call.envelope.envelope_id for call in calls_in(await kept_in(tmp_path / "out/interactions.jsonl"))
        })
        == 1
    )


async def test_session_resumes_after_provider_is_fixed(answers: Mapping[str, str], tmp_path: Path) -> None:
    with served({}, refuses=401) as server, pytest.raises(UnusableProviderError):
        await ran(asking(tmp_path, server.url))

    with served(answers) as server:
        report = await ran(asking(tmp_path, server.url, resume=True))

    assert server.asked > 0
    assert report.attempts_by_outcome["auth_error"] == 1
    assert (await replay(report.log.parent)).identical


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"model": "other"}, "--model"),
        ({"base_url": "http://127.0.0.1:9/other"}, "--base-url"),
        ({"provider": "rules", "base_url": None}, "--provider"),
    ],
)
async def test_resume_requires_original_model_and_server(
    changes: dict[str, Any], option: str, tmp_path: Path
) -> None:
    with served({}, refuses=401) as server, pytest.raises(UnusableProviderError):
        await ran(asking(tmp_path, server.url))
    before = decided(tmp_path / "out")

    with pytest.raises(OptionError, match="because run 1 was started with it") as refused:
        await ran(asking(tmp_path, **{"url": server.url, "resume": True, **changes}))

    assert refused.value.option == option
    assert decided(tmp_path / "out") == before

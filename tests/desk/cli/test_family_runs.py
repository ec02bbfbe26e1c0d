"""Sessions of `run` with a strategy family of an installed package: replayed, resumed, killed, and without the package."""

import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from agentic_trading.desk.planning.families import drop_family
from agentic_trading.desk.session.families import named_family
from tests.cli.conftest import Command
from tests.desk.cli.test_own_families import NEAR_HIGH, install, remove
from tests.flows import dying_run
from tests.flows.fleet import command as run_command
from tests.forked import ended
from tests.own_package import forget, loaded_modules

RUN: Final = ("run", "--data", "sp500-sample", "--rounds", 2, "--provider", "rules")
OWN: Final = (*RUN, "--bars", 145, "--family", "near_high")
"""Long enough for a plan and its first orders."""

pytestmark = pytest.mark.timeout(180)  # each plan starts processes, and so does each change of weights


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with the installed package."""
    folder = tmp_path_factory.mktemp("installed") / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        install(folder)
        yield folder
    forget("near_high")
    drop_family("near_high")


@pytest.fixture(scope="module")
def run_once(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run. Tests change copies of it."""
    out = tmp_path_factory.mktemp("runs") / "own"
    assert run_command(*OWN, "--out", out) == 0
    return out


@pytest.fixture
def out(run_once: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, as another process finds it: without the family in use."""
    forget("near_high")
    drop_family("near_high")
    return shutil.copytree(run_once, tmp_path / "own")


def manifest_in(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text("utf-8"))
    return found


def text(words: str) -> str:
    return " ".join(words.split())


def test_replay_with_the_family_is_identical(out: Path, command: Command) -> None:
    lines = [json.loads(line) for line in (out / "decisions.jsonl").read_text("utf-8").splitlines()]
    plans = [line for line in lines if line["kind"] == "plan.chosen"]
    assert {plan["body"]["params"]["strategy_type"] for plan in plans} == {"near_high"}
    assert any(line["kind"] == "order.submitted" for line in lines)

    for workers in (1, 8):
        ended = command("replay", "run", out, "--family", "near_high", "--workers", workers, "--json")
        report = json.loads(ended.out)
        assert (ended.code, report["identical"], report["misses"], report["unused"]) == (0, True, 0, 0)
        assert "Warning" not in ended.err


def test_manifest_has_family_and_source(out: Path) -> None:
    manifest = manifest_in(out)

    assert manifest["version"] == 3
    assert {name: manifest["plan"][name] for name in ("family", "rounds")} == {
        "family": "near_high",
        "rounds": 2,
    }
    assert len(manifest["plan"]["source_sha256"]) == 64


def test_family_must_be_named_again(out: Path, tmp_path: Path, command: Command) -> None:
    recorded = ("run", "--data", "sp500-sample", "--bars", 145, "--provider", "recorded", "--from", out, "--out", tmp_path / "again")  # fmt: skip
    left_out = {
        "replay": command("replay", "run", out),
        "resume": command(*RUN, "--bars", 146, "--out", out, "--resume"),
        "recorded": command(*recorded),
    }
    other = command("replay", "run", out, "--family", "momentum")

    assert [ended.code for ended in left_out.values()] == [2, 2, 2]
    assert (
        "--family is left out. Allowed: near_high, because run 1 was made with it" in left_out["replay"].err
    )
    assert "--family is 'left out'. Allowed: 'near_high', because run 1 was" in text(left_out["resume"].err)
    assert "Allowed: 'near_high', because the recorded run was" in text(left_out["recorded"].err)
    assert "--family is 'momentum'. Allowed: near_high, because run 1 was made with it" in text(other.err)
    assert loaded_modules("near_high") == set()  # a folder has chosen no code
    assert not (tmp_path / "again").exists()

    again = command(*recorded, "--family", "near_high", "--json")
    assert json.loads(again.out)["digest"] == manifest_in(out)["digest"]


def test_killed_and_resumed_run_decides_the_same(run_once: Path, tmp_path: Path, command: Command) -> None:
    options = {
        "data": ("sp500-sample",), "bars": 145, "rounds": 2, "family": "near_high", "out": tmp_path / "killed",
    }  # fmt: skip

    killed = ended(
        run_and_die, sys.path, {"options": options, "call": 2, "workflow": "planning"}, folder=tmp_path
    )
    assert killed.code == -signal.SIGKILL, killed.err
    resumed = command(*OWN, "--out", tmp_path / "killed", "--resume", "--workers", 8, "--json")

    assert resumed.code == 0, resumed.err
    assert (tmp_path / "killed" / "decisions.jsonl").read_bytes() == (
        run_once / "decisions.jsonl"
    ).read_bytes()


def run_and_die(path: list[str], asked: dict[str, Any]) -> None:
    """Run with the package on the path, and be killed."""
    sys.path[:] = path
    named_family("near_high")
    dying_run.main(asked)


def test_changed_source_is_a_warning(site: Path, out: Path, command: Command) -> None:
    module = site / "near_high.py"
    module.write_text(NEAR_HIGH + "\n# changed\n", encoding="utf-8")
    try:
        replayed = command("replay", "run", out, "--family", "near_high")
        resumed = command(*RUN, "--family", "near_high", "--bars", 146, "--out", out, "--resume")
    finally:
        module.write_text(NEAR_HIGH, encoding="utf-8")

    for again in (replayed, resumed):
        assert again.code == 0
        assert "the source of the family near_high is not that of run 1 (sha256 " in text(again.err)


def test_missing_package_is_named(
    out: Path, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    remove(tmp_path / "nowhere", monkeypatch)
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if not (Path(folder) / "near_high.py").exists()]
    )
    missing = (
        "--family is 'near_high'. Allowed: momentum, mean_reversion or volatility. For another one, install a package "
        "with an entry point in agentic_trading.families"
    )

    for words in (("replay", "run", out, "--family", "near_high"), (*OWN, "--out", tmp_path / "new")):
        ended = command(*words)
        assert ended.code == 2
        assert missing in text(ended.err)
    assert not (tmp_path / "new").exists()


def test_record_is_read_without_the_package(
    out: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys, "path", [folder for folder in sys.path if not (Path(folder) / "near_high.py").exists()]
    )

    assert command("audit", "verify", out).code == 0
    traces = command("trace", "list", "--store", out, "--json")
    (trace,) = json.loads(traces.out)
    assert "near_high" in command("trace", "show", trace["trace_id"], "--store", out).out
    assert command("report", out).code == 0
    page = (out / "report.html").read_text("utf-8")
    assert "--family near_high" in page
    assert loaded_modules("near_high") == set()


def test_unknown_family_lists_installed_ones(command: Command, tmp_path: Path) -> None:
    forget("near_high")
    drop_family("near_high")

    ended = command(*RUN, "--family", "near_hi", "--out", tmp_path / "new")

    assert ended.code == 2
    assert "--family is 'near_hi'. Allowed: momentum, mean_reversion, volatility or near_high. For" in text(
        ended.err
    )
    assert loaded_modules("near_high") == set()


def test_family_is_refused_for_other_runs(session: Path, tmp_path: Path, command: Command) -> None:
    market = command("run", "--data", "btcusdt-5m", "--family", "near_high", "--out", tmp_path / "new")
    replayed = command("replay", "run", session, "--family", "near_high")
    folder = command("replay", "run", tmp_path / "empty", "--family", "near_high", "--", "true")

    assert [market.code, replayed.code, folder.code] == [2, 2, 2]
    assert "data that a planner trades as one portfolio: sp500-sample" in text(market.err)
    assert "--family is 'near_high'. Allowed: no family, because run 1 has no plan" in text(replayed.err)
    assert "--family with a session of `run`" in text(folder.err)

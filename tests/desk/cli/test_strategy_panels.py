"""`strategy` over an own panel: the search, its replay, and later runs over the kept panel."""

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Command
from tests.desk.planning.own_panels import TERMS, long_csv, write_panel

SEARCH = ("strategy", "propose", "--rounds", 4, "--random", 0, "--json")


def rounds_of(found: dict[str, Any]) -> Any:
    return found["rounds"], found["champion"], found["bars"]


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "interactions.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def search_of(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a search with their ids and times, without the places in the chain of the log."""
    chain = {"hash", "prev"}
    kinds = ("generation.", "plan.")
    found = [each for each in records(folder) if str(each.get("kind")).startswith(kinds)]
    assert len(found) == 9  # a proposal and a result in each round, and the plan
    return [{name: value for name, value in each.items() if name not in chain} for each in found]


def test_search_over_own_panel_replays_and_backtests(command: Command, tmp_path: Path) -> None:
    folder = write_panel(tmp_path / "mine")
    ended = command(*SEARCH, "--data", folder, "--provider", "rules", "--out", "out")
    first = json.loads(ended.out)
    assert (ended.code, first["data"], first["valid"], first["distinct"]) == (0, "nordic", 4, 4)
    for each in folder.iterdir():
        each.unlink()  # the folder of the search has all that later runs need

    kept = ("--data", Path("out", "panel"))
    again = command(*SEARCH, *kept, "--provider", "recorded", "--from", "out", "--out", "again")

    assert again.code == 0, again.err
    assert rounds_of(json.loads(again.out)) == rounds_of(first)
    same = command(*SEARCH, *kept, "--provider", "rules", "--out", "same")
    assert rounds_of(json.loads(same.out)) == rounds_of(first)
    assert search_of(Path("same")) == search_of(Path("out"))
    ids = {"interaction_id"}
    bodies = [
        [
            {name: value for name, value in each["body"].items() if name not in ids}
            for each in search_of(Path(out))
        ]
        for out in ("out", "again")
    ]
    assert bodies[0] == bodies[1]

    champion = first["champion"]
    Path("set.json").write_text(json.dumps(champion["params"]), encoding="utf-8")
    result = json.loads(command("strategy", "backtest", "set.json", *kept, "--json").out)
    for name in ("in_sample", "out_of_sample", "data_sha256", "code_sha256"):
        assert result[name] == champion[name]


def test_own_catalyst_is_offered_shown_and_run(command: Command, tmp_path: Path) -> None:
    folder = write_panel(tmp_path / "mine")
    params = {
        "strategy_type": "momentum", "momentum_period": 10, "ma_periods": 20, "catalyst_type": "surprise",
        "catalyst_lookback": 3, "n_stocks": 5, "stop_loss": 0.1, "resample": "W", "resample_offset": 0,
    }  # fmt: skip
    Path("set.json").write_text(json.dumps(params), encoding="utf-8")

    result = command("strategy", "backtest", "set.json", "--data", folder, "--json")
    shown = command("strategy", "show", "set.json", "--data", folder)
    checked = command("strategy", "code", "set.json", "--data", folder, "--check")

    assert json.loads(result.out)["in_sample"]["turnover"] > 0
    assert "surprise 3m" in shown.out
    assert "catalyst > 0" in checked.out
    assert "look-ahead: passed" in checked.err
    assert checked.code == 0
    elsewhere = command("strategy", "show", "set.json")
    assert elsewhere.code == 2
    assert "catalyst_type" in elsewhere.err + elsewhere.out
    command(*SEARCH, "--data", folder, "--provider", "rules", "--out", "out")
    asked = next(each["envelope"] for each in records(Path("out")) if "envelope" in each)
    offered = asked["expected_output_schema"]["properties"]["params"]["properties"]["catalyst_type"]
    assert offered["enum"] == ["none", "surprise", "guidance"]
    assert offered["description"].endswith(
        "; surprise: earnings above the consensus, as a share of it; guidance: 1 if the company has raised its guidance"
    )


def test_folder_of_other_panel_is_refused(command: Command, tmp_path: Path) -> None:
    write_panel(tmp_path / "one")
    write_panel(tmp_path / "other", terms=TERMS.replace("nordic", "baltic"))
    assert command(*SEARCH, "--data", tmp_path / "one", "--out", "out").code == 0
    assert command(*SEARCH, "--data", tmp_path / "one", "--out", "out").code == 0

    refused = command(*SEARCH, "--data", tmp_path / "other", "--out", "out")

    assert refused.code == 2
    assert "with the panel of another search" in refused.err


def test_unknown_data_lists_choices(command: Command, tmp_path: Path) -> None:
    ended = command(*SEARCH, "--data", "nordic.csv", "--out", "out")

    assert ended.code == 2
    assert "sp500-sample, or a file of prices, or a folder with panel.toml" in " ".join(ended.err.split())
    (tmp_path / "short.csv").write_text(long_csv(bars=100), encoding="utf-8")
    short = command(*SEARCH, "--data", tmp_path / "short.csv", "--out", "out")
    assert short.code == 2
    assert "short offers none of" in " ".join(short.err.split())


def test_default_folder_is_named_after_file(command: Command, tmp_path: Path) -> None:
    (tmp_path / "nordic.csv").write_text(long_csv(), encoding="utf-8")

    ended = command(*SEARCH, "--data", tmp_path / "nordic.csv")

    assert Path(json.loads(ended.out)["log"]).parent.name == "nordic-strategies"

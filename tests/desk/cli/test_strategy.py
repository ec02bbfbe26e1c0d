"""`strategy`: sets that are proposed, shown, made into code and run over past prices."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.operate import providers
from tests.cli.conftest import Command
from tests.desk.planning.searching import SET
from tests.desk.planning.sets import EXAMPLE, answer

ROOT = Path(__file__).parents[3]
PROPOSE = ("strategy", "propose", "--out", "out", "--random", "0")
PNG = b"\x89PNG\r\n\x1a\n"


def written(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "params.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def script(tmp_path: Path, *answers: str) -> Path:
    """Write a configuration whose scripted provider gives these answers."""
    path = tmp_path / "scripted.toml"
    path.write_text(f"[providers.scripted.options]\nanswers = {json.dumps(answers)}\n", encoding="utf-8")
    return path


def test_thirty_rule_rounds_valid_and_distinct(
    command: Command,
) -> None:
    ended = command(*PROPOSE[:4], "--rounds", 30, "--random", 1, "--provider", "rules", "--json")

    found = json.loads(ended.out)
    assert (ended.code, found["valid"], found["distinct"], found["tried"]) == (0, 30, 30, 30)
    assert (found["attempts"], found["of_no_use"], found["cost_nusd"]) == (30, {}, 0)
    assert found["bars"] == {"start": 121, "split": 183, "end": 245}
    best = max(each["in_sample"]["sharpe"] for each in found["rounds"])
    assert found["champion"]["in_sample"]["sharpe"] == best
    assert 0 <= found["deflated_sharpe"] <= 1
    assert found["random_searches"] == 1
    for beside in ("equal_weight", "random_median"):
        assert {"sharpe", "cagr", "turnover"} <= set(found[beside]["out_of_sample"])


def test_propose_table_states_method_and_limits(command: Command) -> None:
    ended = command(*PROPOSE, "--rounds", 3, "--plot", "equity.png")

    assert ended.code == 0
    lines = ended.out.splitlines()
    assert lines[0].strip() == (
        "sp500-sample: 50 stocks, 245 days, 2009-08-21 … 2010-08-20, 252 a year · chosen on bars 121-182, reported on 183-244"
    )
    assert "revenue, earnings not offered" in lines[1]
    for text in (
        "3 rounds · 3 valid · 3 distinct (100 %) · 1 answer each · cost 0.000000 USD",
        "champion, round ",
        "equal weight",
        "(3 sets tried): not distinguishable from luck",
        "in_sample",
        "124 bars of one year are too few for a conclusion",
    ):
        assert text in ended.out
    assert Path("equity.png").read_bytes().startswith(PNG)


def test_rejected_answers_counted_and_traced(command: Command, tmp_path: Path) -> None:
    given = ["not JSON", answer({**SET, "stop_loss": "10%"}), answer(SET), answer(SET), answer(SET)]
    config = script(tmp_path, *given)

    ended = command(*PROPOSE, "--rounds", 2, "--provider", "scripted", "--config", config)

    assert ended.code == 0
    assert "2 rounds · 3 valid · 1 distinct (33 %) · 2.5 answers a round" in ended.out
    assert "unusable answers: json_parse 1 · schema_validation 1" in ended.out
    assert "repeated" in ended.out
    trace = command("trace", "show", ended.out.split("trace show ")[1].split()[0], "--store", "out")
    assert trace.out.count("generation.rejected") == 2
    assert "attempt 2 parsing_error" in trace.out
    assert "$.params.stop_loss" in trace.out
    assert "plan.chosen" in trace.out


def test_named_provider_uses_adapter_retry_policy(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "PATIENCE", {"scripted": RetryPolicy(attempt_timeout_s=299)})
    config = tmp_path / "small.toml"
    config.write_text(
        f'[providers.small]\nadapter = "scripted"\noptions.answers = {json.dumps([answer(SET)])}\n'
        '[[providers.small.models]]\nmodel = "small-1"\ncontext_tokens = 100_000\nmax_output_tokens = 4000\n'
        'source = "a test"\nchecked_on = 2026-01-02\nprice = {input = "0", output = "0"}\n',
        encoding="utf-8",
    )

    ended = command(*PROPOSE, "--rounds", 1, "--config", config, "--provider", "small", "--model", "small-1")

    assert ended.code == 0
    assert "small: 1 round of at most 6 answers, at most 0 USD." in ended.err  # free, hence not confirmed
    assert '"attempt_timeout_s":299' in Path("out", "interactions.jsonl").read_text(encoding="utf-8")


def test_propose_writes_segments_as_configured(command: Command, tmp_path: Path) -> None:
    config = script(tmp_path, *[answer(SET)] * 8)
    with config.open("a", encoding="utf-8") as file:
        file.write("[log]\nsegment_bytes = 65536\ncompress = true\n")

    ended = command(*PROPOSE, "--rounds", 8, "--provider", "scripted", "--config", config)

    assert ended.code == 0
    assert Path("out", "interactions-00000000000000000001.jsonl.zst").is_file()
    assert command("audit", "verify", "out").code == 0


def test_failed_choice_exits_with_reason(command: Command, tmp_path: Path) -> None:
    config = script(tmp_path, "no", "no either")

    ended = command(*PROPOSE, "--rounds", 1, "--provider", "scripted", "--config", config)

    assert ended.code == 1
    assert "No set was chosen: parsing_error" in ended.out
    assert "json_parse 2" in ended.out
    again = command(*PROPOSE, "--rounds", 1, "--provider", "scripted", "--config", config, "--json")
    assert json.loads(again.out)["reason"]["category"] == "parsing_error"


def test_recorded_search_replays_same_rounds(command: Command) -> None:
    first = command(*PROPOSE, "--rounds", 4, "--json")

    again = command(
        "strategy", "propose", "--provider", "recorded", "--from", "out", "--out", "again", "--rounds", 4,
        "--random", 0, "--json",
    )  # fmt: skip

    before, after = json.loads(first.out), json.loads(again.out)
    assert after["rounds"] == before["rounds"]
    assert after["champion"] == before["champion"]


def test_repeated_search_reuses_cached_results(command: Command) -> None:
    first = json.loads(command(*PROPOSE, "--rounds", 3, "--json").out)
    damaged = sorted(Path("out/strategies").iterdir())
    damaged[0].write_text("{")

    again = json.loads(command(*PROPOSE, "--rounds", 3, "--json").out)

    assert again["rounds"] == first["rounds"]
    assert again["trace_id"] != first["trace_id"]
    trace = command("trace", "show", again["trace_id"], "--store", "out", "--json")
    steps = json.loads(trace.out)
    cached = [
        record["body"]["cached"]
        for step in (steps if isinstance(steps, list) else steps["steps"])
        for record in step["records"]
        if record.get("kind") == "generation.accepted"
    ]
    assert sorted(cached) == [False, True, True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--family", "carry"],
            "no strategy family is called 'carry'. Allowed: momentum, mean_reversion, volatility",
        ),
        (["--data", "btcusdt-5m"], "--data is 'btcusdt-5m'. Allowed: sp500-sample"),
        (["--provider", "oracle", "--yes"], "--provider is 'oracle'. Allowed: rules, recorded, scripted"),
        (["--provider", "anthropic", "--yes"], "--record is left out. Allowed: --record with anthropic"),
        (["--provider", "anthropic", "--record"], "the cost must be confirmed, but there is no terminal"),
        (
            ["--provider", "anthropic", "--record", "--model", "claude-none", "--yes"],
            "not in the table of models",
        ),
        (["--provider", "recorded"], "--from is left out"),
        (["--provider", "recorded", "--from", "nowhere"], "--from is nowhere, without an answer"),
        (["--from", "nowhere"], "--from is nowhere"),
        (["--budget-usd", "-1"], "--budget-usd is -1. Allowed: an amount above 0"),
        (["--budget-usd", "nan"], "--budget-usd is NaN. Allowed: an amount above 0"),
        (["--costs", "10"], "--costs is '10'. Allowed: two numbers of basis points"),
        (["--costs", "nan,5"], "--costs is 'nan,5'"),
        (
            ["--plot", "equity.pdf"],
            "--plot is equity.pdf. Allowed: a file that ends in .png, in an existing folder",
        ),
    ],
)
def test_invalid_propose_options_show_allowed_values(command: Command, words: list[str], said: str) -> None:
    ended = command(*PROPOSE, *words)

    assert ended.code == 2
    assert said in " ".join(ended.err.split())


@pytest.mark.parametrize("name", ["show", "code", "backtest"])
def test_invalid_set_lists_each_violation(command: Command, tmp_path: Path, name: str) -> None:
    ended = command("strategy", name, written(tmp_path, {**SET, "momentum_period": 25, "stop_loss": "10%"}))

    assert ended.code == 2
    assert "1. **params.momentum_period**: Invalid value" in ended.err
    assert "   - Suggestion: Use 20 (closest valid value)" in ended.err
    assert '2. **params.stop_loss**: Type error\n   - Given: "10%"' in ended.err


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no JSON", "Parse error"),
        ("[1]", "answer**: Type error"),
        ({"params": 7}, "params**: Type error"),
        ({**SET, "strategy_type": "carry"}, "Allowed: momentum, mean_reversion, volatility"),
        ({**SET, "strategy_type": ["momentum"]}, "Allowed: momentum, mean_reversion, volatility"),
    ],
)
def test_file_without_set_is_bad_input(command: Command, tmp_path: Path, value: Any, said: str) -> None:
    ended = command("strategy", "show", written(tmp_path, value))

    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err


def test_byte_order_mark_is_accepted(command: Command, tmp_path: Path) -> None:
    plain = command("strategy", "show", written(tmp_path, SET))

    assert command("strategy", "show", written(tmp_path, "\ufeff" + json.dumps(SET))) == plain


def test_missing_set_file_is_bad_input(command: Command) -> None:
    ended = command("strategy", "show", "nowhere.json")

    assert ended.code == 2
    assert "a JSON file with the parameters of a strategy" in ended.err


def test_show_prints_meaning_and_hashes(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, EXAMPLE)

    shown = command("strategy", "show", path)
    values = json.loads(command("strategy", "show", path, "--json").out)

    assert shown.code == 0
    assert "days over which the return is measured" in shown.out
    assert values["params_sha256"] in shown.out
    assert values["params"]["catalyst_type"] == "revenue"


def test_unserved_set_shown_but_not_run(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, EXAMPLE)

    assert command("strategy", "code", path).code == 0
    ended = command("strategy", "backtest", path)
    assert ended.code == 2
    assert '- Allowed: ["none", "volume"]' in ended.err


def test_code_is_printed_with_checks(command: Command, tmp_path: Path) -> None:
    ended = command("strategy", "code", written(tmp_path, SET), "--check")

    assert ended.code == 0
    assert ended.out.startswith("# A momentum strategy")
    compile(ended.out, "code", "exec")
    assert ended.err.splitlines()[-3:] == ["gate: passed", "run and promises: passed", "look-ahead: passed"]


def test_backtest_compares_equal_weight_and_costs(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, SET)

    table = command("strategy", "backtest", path, "--plot", "equity.png")
    dear = json.loads(command("strategy", "backtest", path, "--costs", "100,50", "--json").out)
    free = json.loads(command("strategy", "backtest", path, "--costs", "0,0", "--json").out)

    assert table.code == 0
    assert "this strategy" in table.out
    assert "equal weight" in table.out
    assert "(1 set tried)" in table.out
    assert Path("equity.png").read_bytes().startswith(PNG)
    assert dear["in_sample"]["total_return"] < free["in_sample"]["total_return"]
    assert dear["params_sha256"] == free["params_sha256"]


@pytest.mark.parametrize("package", ["numpy", "matplotlib"])
def test_missing_extra_is_named(tmp_path: Path, package: str) -> None:
    path = written(tmp_path, SET)
    hidden = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.modules[{package!r}] = None; from agentic_trading.cli.main import main; "
    program = f"{hidden}main(['strategy', 'backtest', {str(path)!r}, '--plot', 'equity.png'])"

    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    assert f"{package} is not installed. Run pip install 'agentic-trading[desk]'" in ended.stderr


def test_plot_failure_keeps_results(command: Command, tmp_path: Path) -> None:
    (tmp_path / "taken.png").mkdir()

    ended = command(*PROPOSE, "--rounds", 1, "--plot", tmp_path / "taken.png")

    assert ended.code == 2
    assert "champion, round 1" in ended.out
    assert "Allowed: a file that can be written" in ended.err

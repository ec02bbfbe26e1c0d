"""What `config show` prints loads back, without a secret; `config check` ends with all that is wrong."""

import json
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.platform import PlatformConfig, load_config
from tests.cli.conftest import Command

FILE = """
name = "desk-eu"
[providers.scripted]
[providers.vllm-a]
adapter = "openai"
base_url = "http://10.0.0.5:8000/v1"
[tenants.acme]
budget_usd = "25"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_config_show_prints_origins_and_hides_keys(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_A_API_KEY", "sk-one")
    monkeypatch.setenv("AGENTIC_TENANTS__ACME__CALLS", "7")

    shown = command("config", "show", "--config", str(file))

    lines = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines()}
    assert lines["tenants.acme.budget_usd"] == ["25", str(file)]
    assert lines["tenants.acme.calls"] == ["7", "AGENTIC_TENANTS__ACME__CALLS"]
    assert lines["zone"] == ["UTC", "default"]
    assert lines["providers.vllm-a,"] == ["its", "key", "…", "VLLM_A_API_KEY"]
    assert "sk-one" not in shown.out + shown.err


def test_config_show_json_loads_back(command: Command, file: Path) -> None:
    shown = json.loads(command("config", "show", "--config", str(file), "--json").out)

    assert PlatformConfig(**shown["config"]) == load_config(file)
    assert shown["config_sha256"] == load_config(file).config_sha256
    assert shown["origins"]["providers.vllm-a.base_url"] == str(file)
    assert shown["keys"] == {}


def test_valid_configuration_passes_check(command: Command, file: Path) -> None:
    checked = command("config", "check", "--config", str(file))

    assert (checked.code, checked.out) == (
        ExitCode.DONE,
        "Configuration OK (providers: scripted, vllm-a; tenants: acme)\n",
    )


def test_config_check_reports_every_problem(command: Command, file: Path) -> None:
    file.write_text(f'{FILE}[providers.house]\n[models]\nanalysis = "hous/q"\n', encoding="utf-8")

    checked = command("config", "check", "--config", str(file))

    assert checked.code == ExitCode.BAD_INPUT
    assert "Error: 2 problems in the configuration:" in checked.err
    assert f"{file}: models.analysis is hous/q, whose provider is not configured" in checked.err


def test_unknown_configuration_key_is_bad_input(command: Command, file: Path) -> None:
    file.write_text(f'{FILE}[buss]\nurl = "kafka://broker"\n', encoding="utf-8")

    for words in (["config", "show"], ["config", "check"]):
        ended = command(*words, "--config", str(file))

        assert ended.code == ExitCode.BAD_INPUT
        assert f"Error: {file}: buss is an unknown key. Allowed: name, folder, " in ended.err

"""Every file that a configuration names may be replaced by anything: `config check` names it, in time, with exit code 2."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentic_trading.bus.signing import write_key
from agentic_trading.cli.exits import ExitCode
from tests.cli.conftest import Command

pytestmark = pytest.mark.timeout(60)

CONFIG = """
name = "a"
[models]
analysis = "rules/rules-1"
[providers.rules]
"""
POLICY = """
[principals.p]
tenants = ["*"]
models = ["rules/*"]
"""
KEYS = 'policy = "policy.toml"\nsign_as = "p"\nprincipals_folder = "keys"\n'
TLS = '[bus]\nurl = "kafka://127.0.0.1:1"\n[ledger]\nurl = "redis://127.0.0.1:1"\n'

PLACES = {
    "policy.toml": 'policy = "policy.toml"\n' + CONFIG,
    "models.json": 'models_file = "models.json"\n' + CONFIG,
    "prices.json": 'prices_file = "prices.json"\n' + CONFIG,
    "keys/q": KEYS + CONFIG,
    "ca.pem": CONFIG + TLS.replace("[ledger]", 'ca_file = "ca.pem"\n[ledger]'),
    "client.pem": CONFIG + TLS.replace("[ledger]", 'certificate_file = "client.pem"\n[ledger]'),
    "password": CONFIG + TLS.replace("[ledger]", 'username = "u"\npassword_file = "password"\n[ledger]'),
}


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "dangling link": lambda path: path.symlink_to("gone"),
    "endless loop": lambda path: path.symlink_to(path.name),
    "huge file": sparse,
    "byte order mark": lambda path: path.write_bytes(b"\xef\xbb\xbf" + b"x" * 40),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_unusable_file_is_named_by_config_check(
    place: str, kind: str, tmp_path: Path, command: Command
) -> None:
    write_key(tmp_path / "keys", "p")
    (tmp_path / "policy.toml").write_text(POLICY)
    config = tmp_path / "agentic-trading.toml"
    config.write_text(PLACES[place])
    (tmp_path / place).unlink(missing_ok=True)
    KINDS[kind](tmp_path / place)

    ended = command("config", "check", "--config", config)

    assert ended.code == ExitCode.BAD_INPUT, ended.err
    assert place in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "byte order mark"])
def test_unusable_configuration_is_named(kind: str, tmp_path: Path, command: Command) -> None:
    config = tmp_path / "agentic-trading.toml"
    KINDS[kind](config)

    ended = command("config", "check", "--config", config)

    assert ended.code == ExitCode.BAD_INPUT
    assert "agentic-trading.toml, which cannot be read (" in ended.err


@pytest.mark.parametrize("pattern", ["rules/" + "*a" * 500_000, "rules/" + "x" * 257])
def test_overlong_policy_pattern_is_refused(pattern: str, tmp_path: Path, command: Command) -> None:
    (tmp_path / "policy.toml").write_text(POLICY.replace("rules/*", pattern))
    config = tmp_path / "agentic-trading.toml"
    config.write_text(PLACES["policy.toml"])

    ended = command("config", "check", "--config", config)

    assert ended.code == ExitCode.BAD_INPUT
    assert "of at most 256 characters" in ended.err
    assert len(ended.err) < 1000

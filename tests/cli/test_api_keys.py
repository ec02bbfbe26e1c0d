"""`agentic-trading api-keys` creates, lists, revokes and rotates keys, and shows each secret once."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.clock import SystemClock
from agentic_trading.server.api_keys import ApiKeys
from tests.cli.conftest import Command, Ended

FILE = Path("api-keys.toml")
OF_TA = ("--tenant", "default", "--agent", "ta")
CREATE = ("api-keys", "create", "ta", *OF_TA)
POLICY = '[principals.desk-a]\ntenants = ["default"]\nmodels = ["openai/*"]\n'


def owner_of(secret: str, file: Path = FILE) -> str | None:
    """Return the name of the key that a server finds for a secret, or None."""
    key = ApiKeys(file, SystemClock()).find(secret)
    return None if key is None else key.name


def secret_of(ended: Ended) -> str:
    """Return the secret that a command has printed, alone on standard output."""
    assert ended.code == ExitCode.DONE
    assert re.fullmatch(r"agt_[0-9a-f]{64}\n", ended.out)
    return ended.out.strip()


def in_days(days: int) -> str:
    return f"{SystemClock().now() + timedelta(days=days):%Y-%m-%d %H:%M}"


def test_created_secret_is_printed_once_and_valid(command: Command) -> None:
    ended = command(*CREATE)
    secret = secret_of(ended)

    assert ended.err == "Created API key ta in api-keys.toml. Its secret is not shown again:\n"
    assert owner_of(secret) == "ta"
    later = [
        command("api-keys", "list"),
        command("api-keys", "list", "--json"),
        command("api-keys", "revoke", "ta"),
    ]
    assert all(secret not in each.out + each.err for each in later)
    assert secret not in FILE.read_text(encoding="utf-8")


def test_all_options_become_rights(command: Command) -> None:
    Path("agentic-trading.toml").write_text(
        'policy = "policy.toml"\nsign_as = "desk-a"\n[tenants.acme]\n', encoding="utf-8"
    )
    Path("policy.toml").write_text(POLICY, encoding="utf-8")
    words = [
        "--tenant=acme", "--agent=ta", "--workflow=analysis", "--principal=desk-a", "--model=fast=openai/gpt-5-mini",
        "--model=deep=house/a=b", "--max-output-tokens=1000", "--usd-per-call=0.50", "--usd-per-trace=2",
        "--calls-per-trace=30", "--attempt-timeout-s=60", "--park-s=5", "--json-schema=pass", "--stream=through",
        "--records-events",
        "--expires=2999-01-31T10:00Z",
    ]  # fmt: skip

    secret_of(command("api-keys", "create", "ta", *words))

    [row] = json.loads(command("api-keys", "list", "--json").out)
    assert row.pop("created").endswith("Z")
    assert row == {
        "name": "ta",
        "tenant": "acme",
        "agent": "ta",
        "workflow": "analysis",
        "principal": "desk-a",
        "models": {"fast": "openai/gpt-5-mini", "deep": "house/a=b"},
        "max_output_tokens": 1000,
        "usd_per_call": "0.50",
        "usd_per_trace": "2",
        "calls_per_trace": 30,
        "attempt_timeout_s": 60.0,
        "park_s": 5.0,
        "json_schema": "pass",
        "stream": "through",
        "records_events": True,
        "expires": "2999-01-31T10:00:00Z",
        "revoked": None,
        "earlier_secrets_until": None,
        "state": "valid",
    }


def test_list_shows_rights_and_states(command: Command) -> None:
    secret_of(
        command(*CREATE, "--expires", "90d", "--model", "fast=openai/gpt-5-mini", "--usd-per-call", "0.50")
    )
    secret_of(command("api-keys", "create", "hf", *OF_TA, "--usd-per-trace", "2", "--calls-per-trace", "9"))
    secret_of(command("api-keys", "create", "old", *OF_TA))
    command("api-keys", "revoke", "old")
    secret_of(command("api-keys", "rotate", "hf", "--grace", "1d"))

    head, first, second, third = command("api-keys", "list").out.splitlines()

    assert head.split() == ["name", "state", "tenant", "agent", "workflow", "principal", "models", "ceilings"]
    assert re.split(r"  +", first) == [
        "ta", f"valid, until {in_days(90)}", "default", "ta", "general", "-", "fast=openai/gpt-5-mini",
        "16384 output tokens, 0.50 USD a call",
    ]  # fmt: skip
    assert f"valid, earlier secret until {in_days(1)}" in second
    assert "all served" in second
    assert second.endswith("16384 output tokens, 2 USD a trace, 9 calls a trace")
    assert f"revoked {in_days(0)}" in third


def test_expired_key_is_listed_as_expired(command: Command) -> None:
    secret = secret_of(command(*CREATE, "--expires", "1d"))
    text = FILE.read_text(encoding="utf-8")
    FILE.write_text(re.sub(r"expires = \S+", "expires = 2026-01-31T00:00:00Z", text), encoding="utf-8")

    assert "expired, since 2026-01-31 00:00" in command("api-keys", "list").out
    assert json.loads(command("api-keys", "list", "--json").out)[0]["state"] == "expired"
    assert owner_of(secret) is None
    assert "NAME is 'ta', which is expired" in command("api-keys", "rotate", "ta").err


def test_missing_file_has_no_keys(command: Command) -> None:
    plain, as_json = command("api-keys", "list"), command("api-keys", "list", "--json")

    assert (plain.code, plain.out) == (ExitCode.DONE, "")
    assert plain.err == (
        "There are no API keys in api-keys.toml. Create one with: agentic-trading api-keys create\n"
    )
    assert (as_json.code, json.loads(as_json.out)) == (ExitCode.DONE, [])
    assert not FILE.exists()


def test_revoked_key_is_refused(command: Command) -> None:
    secret = secret_of(command(*CREATE))

    first, again = command("api-keys", "revoke", "ta"), command("api-keys", "revoke", "ta")

    assert first.code == ExitCode.DONE
    assert re.fullmatch(
        r"Revoked API key ta at \S+ \S+ UTC\. Servers refuse it within two seconds\.\n", first.out
    )
    assert again == first  # with the time of the first one
    assert owner_of(secret) is None


def test_rotation_keeps_the_old_secret_for_the_grace_period(command: Command) -> None:
    old = secret_of(command(*CREATE))

    ended = command("api-keys", "rotate", "ta")
    new = secret_of(ended)

    assert [owner_of(each) for each in (old, new)] == ["ta", "ta"]
    assert re.fullmatch(
        r"Rotated API key ta in api-keys\.toml\. Earlier secrets end at (\S+ \S+) UTC\. "
        r"The new secret is not shown again:\n",
        ended.err,
    )
    [row] = json.loads(command("api-keys", "list", "--json").out)
    until = datetime.fromisoformat(row["earlier_secrets_until"])
    left = until - datetime.fromisoformat(row["created"])
    assert timedelta(hours=1) <= left < timedelta(hours=1, minutes=1)
    assert until.tzinfo == UTC


def test_rotation_after_a_leak_ends_the_old_secret(command: Command) -> None:
    leaked = secret_of(command(*CREATE))

    ended = command("api-keys", "rotate", "ta", "--grace", "0s")

    assert "Earlier secrets are invalid. The new secret" in ended.err
    assert [owner_of(each) for each in (leaked, secret_of(ended))] == [None, "ta"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workflow", "execution"], "--workflow is 'execution'. Allowed: analysis, planning, or general"),
        (["--model", "fast"], "--model is 'fast'. Allowed: ALIAS=PROVIDER/MODEL, such as fast=openai/gpt-5-mini"),
        (["--model", "fast=gpt-5-mini"], "--model is 'gpt-5-mini'. Allowed: PROVIDER/MODEL, such as"),
        (["--model", "=openai/x"], "--model is ''. Allowed: 1 to 128 letters, digits, and ._:/@+-"),
        (["--model", "a=openai/x", "--model", "a=openai/y"], "'a=openai/y', whose alias is used twice"),
        (["--model", "a=openai/\udcff"], "printable characters"),
        (["--usd-per-call", "1e3"], "--usd-per-call is '1e3'. Allowed: dollars as text"),
        (["--max-output-tokens", "0"], "--max-output-tokens is 0. Allowed: greater than or equal to 1"),
        (["--calls-per-trace", "-1"], "--calls-per-trace is -1. Allowed: greater than or equal to 0"),
        (["--attempt-timeout-s", "nan"], "--attempt-timeout-s is nan. Allowed: less than or equal to 3600"),
        (["--json-schema", "maybe"], "--json-schema is 'maybe'. Allowed: 'pass', 'validate' or 'reask'"),
        (["--expires", "yesterday"], "--expires is 'yesterday'. Allowed: a time in the future"),
        (["--expires", "0s"], "--expires is '0s'. Allowed: a time in the future"),
        (["--expires", "999999999d"], "--expires is '999999999d'. Allowed: a time in the future"),
        (["--expires", "soon"], "--expires is 'soon'. Allowed: a time in the future"),
        (["--principal", "a/b"], "--principal is 'a/b'. Allowed: 1 to 128 letters"),
        (["--tenant", "acme"], "--tenant is 'acme'. Allowed: default, from the configuration"),
        (["--tenant", "a b"], "--tenant is 'a b'. Allowed: 1 to 128 letters"),
        (["--agent", ""], "--agent is ''. Allowed: 1 to 128 letters"),
        (["--config", "none.toml"], "--config is none.toml, which cannot be read"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_option_creates_no_key(words: list[str], said: str, command: Command) -> None:
    ended = command(*CREATE, *words)

    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert said in ended.err
    assert not FILE.exists()


@pytest.mark.parametrize("name", ["a b", "../ta", "", ".ta", "é", "ta\x1b[2J", "x" * 129, "ta]\n[keys.b"])
def test_hostile_name_is_refused_and_escaped(name: str, command: Command) -> None:
    ended = command("api-keys", "create", *OF_TA, "--", name)

    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert "Allowed: 1 to 128 letters, digits, and ._@-, not starting with a dot or dash" in ended.err
    assert "\x1b" not in ended.err
    assert not FILE.exists()
    for change in ("revoke", "rotate"):
        refused = command("api-keys", change, "--", name)
        assert (refused.code, refused.out) == (ExitCode.BAD_INPUT, "")
        assert "which api-keys.toml does not have. Allowed: none: create a key first" in refused.err
        assert "\x1b" not in refused.err


def test_all_wrong_options_are_listed(command: Command) -> None:
    ended = command("api-keys", "create", "a b", "--tenant", "", "--agent", "a\nb", "--calls-per-trace", "-1")

    assert [line.partition(" is ")[0].strip() for line in ended.err.splitlines()[1:]] == [
        "NAME", "--tenant", "--agent", "--calls-per-trace",
    ]  # fmt: skip


def test_principal_that_cannot_sign_is_refused_and_one_with_a_signing_key_is_not(command: Command) -> None:
    config, named = Path("agentic-trading.toml"), (*CREATE, "--principal", "desk-a")
    unsigned = command(*named)
    command("keys", "create", "desk-b", "--dir", "keys")
    config.write_text('principals_folder = "keys"\nsign_as = "desk-b"\n', encoding="utf-8")
    unknown = command(*named)
    command("keys", "create", "desk-a", "--dir", "keys")

    assert (unsigned.code, unknown.code) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    assert "--principal is 'desk-a', but messages are not signed" in unsigned.err
    assert "set principals_folder" in unsigned.err
    assert "--principal is 'desk-a', which has no signing key. Allowed: desk-b" in unknown.err
    assert owner_of(secret_of(command(*named))) == "ta"


def test_policy_with_principals_requires_one(command: Command) -> None:
    Path("agentic-trading.toml").write_text('policy = "policy.toml"\nsign_as = "desk-a"\n', encoding="utf-8")
    Path("policy.toml").write_text(POLICY, encoding="utf-8")

    missing, unknown = command(*CREATE), command(*CREATE, "--principal", "desk-b")

    assert missing.err == (
        "Error: --principal is not set, but policy.toml names principals. Allowed: desk-a\n"
    )
    assert unknown.err == "Error: --principal is 'desk-b'. Allowed: desk-a\n"
    assert owner_of(secret_of(command(*CREATE, "--principal", "desk-a"))) == "ta"


@pytest.mark.parametrize("option", [True, False])
def test_file_is_next_to_the_configuration(
    *, option: bool, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path("etc", "desk.toml")
    config.parent.mkdir()
    config.write_text("", encoding="utf-8")
    words = ["--config", str(config)] if option else []
    if not option:
        monkeypatch.setenv("AGENTIC_CONFIG", str(config))

    secret = secret_of(command(*CREATE, *words))

    assert [path.name for path in Path().glob("api-keys*")] == []
    assert owner_of(secret, Path("etc/api-keys.toml")) == "ta"
    assert [row["name"] for row in json.loads(command("api-keys", "list", "--json", *words).out)] == ["ta"]
    secret_of(command("api-keys", "rotate", "ta", *words))
    assert command("api-keys", "revoke", "ta", *words).code == ExitCode.DONE


def test_revocation_works_with_a_broken_configuration(command: Command) -> None:
    secret = secret_of(command(*CREATE))
    Path("agentic-trading.toml").write_text("[broken", encoding="utf-8")

    assert command(*CREATE).code == ExitCode.BAD_INPUT
    assert command("api-keys", "revoke", "ta").code == ExitCode.DONE
    assert owner_of(secret) is None


def test_wrong_grace_rotates_no_key(command: Command) -> None:
    secret = secret_of(command(*CREATE))

    refused = [
        command("api-keys", "rotate", "ta", "--grace", text) for text in ("31d", "1", "-1h", "999999999w")
    ]

    assert {each.code for each in refused} == {ExitCode.BAD_INPUT}
    assert refused[0].err == "Error: --grace is '31d'. Allowed: a duration from 0s to 30d, such as 1h\n"
    assert owner_of(secret) == "ta"


def test_damaged_file_is_named_and_unchanged(command: Command) -> None:
    secret_of(command(*CREATE))
    damaged = FILE.read_bytes()[:-20] + b"expires = "
    FILE.write_bytes(damaged)

    ended = [
        command(*CREATE),
        *(command("api-keys", *words) for words in (["list"], ["revoke", "ta"], ["rotate", "ta"])),
    ]

    assert {each.code for each in ended} == {ExitCode.BAD_INPUT}
    assert all("api-keys.toml: the file is not valid TOML" in each.err for each in ended)
    assert FILE.read_bytes() == damaged


def test_file_has_private_rights(command: Command) -> None:
    before = os.umask(0)
    try:
        secret_of(command(*CREATE))
    finally:
        os.umask(before)

    assert {path.name: path.stat().st_mode & 0o777 for path in Path().glob("api-keys*")} == {
        "api-keys.toml": 0o600,
        "api-keys.toml.lock": 0o600,
    }


@pytest.mark.timeout(60)  # two starts of the program
def test_one_of_two_processes_gets_the_name() -> None:
    program = Path(sys.executable).with_name("agentic-trading")
    both = [
        subprocess.Popen([program, *CREATE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]

    ends = [(*each.communicate(), each.returncode) for each in both]

    [(secret, _, _)] = [end for end in ends if end[2] == ExitCode.DONE]
    [(out, said, _)] = [end for end in ends if end[2] == ExitCode.BAD_INPUT]
    assert owner_of(secret.strip()) == "ta"
    assert out == ""
    assert "NAME is 'ta', which api-keys.toml already has. Allowed: a new name" in said

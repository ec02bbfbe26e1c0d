"""API keys: their file, their secrets, and changes while a server runs."""

import asyncio
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.clock import SimClock, SystemClock
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, limits_of
from agentic_trading.governance.policy import Policy
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.platform.errors import ConfigError, OptionError
from agentic_trading.server import api_keys as server
from agentic_trading.server.api_keys import ApiKey, ApiKeyFile, ApiKeys, new_api_key
from tests.build import NOW, envelope
from tests.worker.ticking import Steps

on_thread = asyncio.to_thread
HOUR = timedelta(hours=1)
DIGEST = "ab" * 32
SHORTEST = f'[keys.ta]\nsha256 = "{DIGEST}"\ntenant = "acme"\nagent = "ta"\ncreated = 2026-01-02T00:00:00Z\n'
SECRET = re.compile(r"agt_[0-9a-f]{64}")

POLICY = '[principals.desk-a]\ntenants = ["acme"]\nmodels = ["openai/*"]\n'
ADDING = """
import sys
from pathlib import Path
from agentic_trading.clock import SystemClock
from agentic_trading.server.api_keys import ApiKeyFile, new_api_key

file, process = ApiKeyFile(Path(sys.argv[1])), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    file.add(new_api_key(f"{process}-{number}", SystemClock().now(), {"tenant": "acme", "agent": "ta"})[0])
"""


@pytest.fixture
def file(tmp_path: Path) -> ApiKeyFile:
    return ApiKeyFile(tmp_path / "api-keys.toml")


def created(file: ApiKeyFile, name: str = "ta", **rights: Any) -> str:
    """Add a key, and return its secret."""
    key, secret = new_api_key(name, NOW, {"tenant": "acme", "agent": "ta", **rights})
    file.add(key)
    return secret


def names_found(keys: ApiKeys, *secrets: str) -> list[str | None]:
    """Return the name of the key of each secret, or None."""
    return [None if (key := keys.find(secret)) is None else key.name for secret in secrets]


def refusal(path: Path) -> Sequence[str]:
    """Return the problems of the file at `path`."""
    with pytest.raises(ConfigError) as caught:
        ApiKeys(path, SimClock(NOW))
    return [str(problem).removeprefix(f"{path}: ") for problem in caught.value.problems]


def policy(tmp_path: Path, text: str = POLICY) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return Policy.load(path)


# --- secrets ---------------------------------------------------------------------------------------------


def test_secret_finds_its_key_only(file: ApiKeyFile) -> None:
    first, second = created(file, "ta"), created(file, "hf")
    keys = ApiKeys(file.path, SimClock(NOW))
    wrong = [first[:-1], first.upper(), f"{first} ", sha256(first.encode()).hexdigest(), "", "\udcff", "é"]

    assert names_found(keys, first, second) == ["ta", "hf"]
    assert names_found(keys, *wrong) == [None] * len(wrong)
    assert keys.names == ("ta", "hf")


def test_secret_is_random_and_stored_as_hash_only(file: ApiKeyFile) -> None:
    secrets = [created(file, f"key-{number}") for number in range(10)]
    text = file.path.read_text(encoding="utf-8")

    assert all(SECRET.fullmatch(secret) for secret in secrets)
    assert len(set(secrets)) == 10
    assert SECRET.search(text) is None
    stored = [table["sha256"] for table in tomllib.loads(text)["keys"].values()]
    assert stored == [sha256(secret.encode()).hexdigest() for secret in secrets]
    assert all(digest not in repr(key) for digest, key in zip(stored, file.read().values(), strict=True))


def test_key_expires_at_its_time(file: ApiKeyFile) -> None:
    secret, clock = created(file, expires=NOW + HOUR), SimClock(NOW)
    keys = ApiKeys(file.path, clock)

    clock.advance_to(NOW + HOUR - timedelta(microseconds=1))
    before = names_found(keys, secret)
    clock.advance_to(NOW + HOUR)

    assert (before, names_found(keys, secret)) == (["ta"], [None])


def test_revoked_key_is_not_found(file: ApiKeyFile) -> None:
    revoked, other = created(file, "ta"), created(file, "hf")

    first = file.revoke("ta", NOW)
    again = file.revoke("ta", NOW + HOUR)

    assert (first.revoked, again.revoked) == (NOW, NOW)
    assert names_found(ApiKeys(file.path, SimClock(NOW)), revoked, other) == [None, "hf"]


def test_earlier_secret_is_valid_for_the_grace_period(file: ApiKeyFile) -> None:
    old, clock = created(file), SimClock(NOW)
    key, new = file.rotate("ta", NOW, HOUR)
    keys = ApiKeys(file.path, clock)

    during = names_found(keys, old, new)
    clock.advance_to(NOW + HOUR)

    assert (during, names_found(keys, old, new)) == (["ta", "ta"], [None, "ta"])
    assert (key.earlier_until(NOW), key.earlier_until(NOW + HOUR)) == (NOW + HOUR, None)


def test_rotation_without_grace_ends_all_earlier_secrets(file: ApiKeyFile) -> None:
    first = created(file)
    _, second = file.rotate("ta", NOW, 2 * HOUR)
    _, third = file.rotate("ta", NOW, HOUR)
    between = names_found(ApiKeys(file.path, SimClock(NOW)), first, second, third)
    key, fourth = file.rotate("ta", NOW, timedelta())

    assert between == ["ta", "ta", "ta"]
    assert names_found(ApiKeys(file.path, SimClock(NOW)), first, second, third, fourth) == [None] * 3 + ["ta"]
    assert key.rotated == {}


def test_shorter_grace_also_shortens_earlier_ones(file: ApiKeyFile) -> None:
    created(file)
    file.rotate("ta", NOW, 5 * HOUR)
    key, _ = file.rotate("ta", NOW, HOUR)

    assert set(key.rotated.values()) == {NOW + HOUR}
    key, _ = file.rotate("ta", NOW + 2 * HOUR, HOUR)
    assert set(key.rotated.values()) == {NOW + 3 * HOUR}


def test_revocation_ends_earlier_secrets_too(file: ApiKeyFile) -> None:
    old = created(file)
    _, new = file.rotate("ta", NOW, HOUR)
    file.revoke("ta", NOW)

    assert names_found(ApiKeys(file.path, SimClock(NOW)), old, new) == [None, None]


@pytest.mark.parametrize(("field", "state"), [("revoked", "revoked"), ("expires", "expired")])
def test_unusable_key_is_not_rotated(field: str, state: str, file: ApiKeyFile) -> None:
    rights: dict[str, Any] = {field: NOW}
    created(file, **rights)
    before = file.path.read_bytes()

    with pytest.raises(
        OptionError, match=f"NAME is 'ta', which is {state}. Allowed: a valid key, or a new one"
    ):
        file.rotate("ta", NOW, HOUR)
    assert file.path.read_bytes() == before


# --- rights ----------------------------------------------------------------------------------------------


def test_ceilings_become_limits_of_the_envelope() -> None:
    rights = {"usd_per_call": "0.50", "usd_per_trace": 2, "calls_per_trace": 30, "max_output_tokens": 1000}
    key, _ = new_api_key("ta", NOW, {"tenant": "acme", "agent": "ta", **rights})

    assert set(limits_of(envelope(budget=key.budget()))) == {
        Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=500_000_000),
        Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=2_000_000_000),
        Limit(ScopeKind.TRACE, ANY, Window.NONE, calls=30),
    }
    assert [key.budget(asked).max_output_tokens for asked in (None, 128_000, 1)] == [1000, 1000, 1]
    assert key.budget().thinking_budget == 0


def test_key_without_ceilings_limits_output_only() -> None:
    key, _ = new_api_key("ta", NOW, {"tenant": "acme", "agent": "ta"})

    assert limits_of(envelope(budget=key.budget(128_000))) == ()
    assert key.budget(128_000).max_output_tokens == 16_384


def test_aliases_are_the_only_allowed_models() -> None:
    aliases = {"fast": "openai/org/model:1", "gpt-5-mini": "openai/gpt-5-mini"}
    limited, _ = new_api_key("ta", NOW, {"tenant": "acme", "agent": "ta", "models": aliases})
    free, _ = new_api_key("ta", NOW, {"tenant": "acme", "agent": "ta"})
    asked = [
        "fast",
        "gpt-5-mini",
        "openai/gpt-5-mini",
        "other",
        "",
        "/",
        "openai/",
        "/m",
        "Ö/m",
        "openai/\x1b",
    ]

    assert [limited.model_of(name) for name in asked] == [
        ("openai", "org/model:1"), ("openai", "gpt-5-mini"), *[None] * 8,
    ]  # fmt: skip
    assert [free.model_of(name) for name in asked] == [None, None, ("openai", "gpt-5-mini"), *[None] * 7]


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ({"workflow": "execution"}, "analysis, planning, or general"),
        ({"usd_per_call": 0.1}, 'dollars as text, such as "0.1"'),
        ({"usd_per_call": "-1"}, "dollars as text"),
        ({"usd_per_call": "0.0000000001"}, "at most nine decimals"),
        ({"max_output_tokens": True}, "valid integer"),
        ({"attempt_timeout_s": float("nan")}, "less than or equal to 3600"),
        ({"attempt_timeout_s": 0}, "greater than 0"),
        ({"attempt_timeout_s": float("inf")}, "less than or equal to 3600"),
        ({"attempt_timeout_s": True}, "valid number"),
        ({"expires": datetime(2027, 1, 1)}, "a time with an offset"),  # noqa: DTZ001 - without one on purpose
        ({"expires": 5}, "a time with an offset"),
        ({"expires": datetime.fromisoformat("0001-01-01T00:00:00+23:59")}, "a time with an offset"),
        ({"agent": "a\nb"}, "1 to 128 letters"),
        ({"principal": "../x"}, "1 to 128 letters"),
        ({"models": {"a b": "openai/x"}}, "1 to 128 letters"),
        ({"models": {"a": "openai/x\x1b[2J"}}, "printable characters"),
        ({"models": {"a": "openai/" + "x" * 300}}, "at most 256"),
        ({"models": {"a": "opennai/x"}}, "Did you mean openai?"),
        ({"models": {"a": "gpt-5"}}, "PROVIDER/MODEL"),
    ],
    ids=str,
)
def test_wrong_right_is_refused(rights: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        new_api_key("ta", NOW, {"tenant": "acme", "agent": "ta", **rights})

    [problem] = caught.value.problems
    assert problem.origin in rights
    assert said in problem.allowed


TIMES = st.datetimes(datetime(2000, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,20}", fullmatch=True)
DIGESTS = st.binary(max_size=3).map(lambda raw: sha256(raw).hexdigest())
USD = st.decimals(0, 9_000_000, places=9).map("{:f}".format)
KEYS = st.builds(
    ApiKey,
    name=NAMES,
    sha256=DIGESTS,
    rotated=st.dictionaries(DIGESTS, TIMES, max_size=2),
    tenant=NAMES,
    agent=NAMES,
    workflow=st.sampled_from([each for each in EnvelopeWorkflow if each != "execution"]),
    principal=NAMES | st.just(""),
    models=st.dictionaries(
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,9}", fullmatch=True),
        st.text(min_size=1, max_size=9).filter(str.isprintable).map("house/".__add__),
        max_size=3,
    ),
    max_output_tokens=st.integers(1, 2**53),
    usd_per_call=st.none() | USD,
    usd_per_trace=st.none() | USD,
    calls_per_trace=st.none() | st.integers(0, 2**53),
    attempt_timeout_s=st.floats(0, 3600, exclude_min=True),
    park_s=st.floats(0, 3600),
    json_schema=st.sampled_from(["pass", "validate", "reask"]),
    records_events=st.booleans(),
    created=TIMES,
    expires=st.none() | TIMES,
    revoked=st.none() | TIMES,
)


@given(KEYS)
def test_any_key_survives_its_file(tmp_path_factory: pytest.TempPathFactory, key: ApiKey) -> None:
    path = tmp_path_factory.mktemp("keys") / "api-keys.toml"
    path.write_text(server.toml_of([key]), encoding="utf-8")

    assert server.read_api_keys(path) == {key.name: key}


# --- policy ----------------------------------------------------------------------------------------------


def test_key_needs_a_principal_of_the_policy(file: ApiKeyFile, tmp_path: Path) -> None:
    created(file, "good", principal="desk-a")
    created(file, "none")
    created(file, "other", principal="desk-b")
    created(file, "over", revoked=NOW)
    created(file, "ended", expires=NOW)
    keys = ApiKeys(file.path, SimClock(NOW))

    with pytest.raises(ConfigError) as caught:
        keys.check(policy(tmp_path))

    assert [str(problem) for problem in caught.value.problems] == [
        f"{file.path}: keys.none.principal is not set, but policy.toml names principals. Allowed: desk-a",
        f"{file.path}: keys.other.principal is 'desk-b'. Allowed: desk-a",
    ]


def test_policy_without_principals_allows_every_key(file: ApiKeyFile, tmp_path: Path) -> None:
    created(file)
    keys = ApiKeys(file.path, SimClock(NOW))

    keys.check(None)
    keys.check(policy(tmp_path, '[[rates]]\nprovider = "openai"\nmodel = "m"\nconcurrent = 8\n'))
    with pytest.raises(ConfigError) as caught:  # the same key, as soon as the policy names principals
        keys.check(policy(tmp_path))

    assert [str(problem) for problem in caught.value.problems] == [
        f"{file.path}: keys.ta.principal is not set, but policy.toml names principals. Allowed: desk-a"
    ]


# --- the file --------------------------------------------------------------------------------------------


def test_shortest_file_has_defaults(file: ApiKeyFile) -> None:
    file.path.write_text(SHORTEST, encoding="utf-8")

    key = file.read()["ta"]

    assert (key.workflow, key.json_schema) == (EnvelopeWorkflow.GENERAL, "validate")
    assert (key.max_output_tokens, key.attempt_timeout_s, key.park_s) == (16_384, 300, 20)
    assert (key.usd_per_call, key.expires, key.revoked, key.created) == (None, None, None, NOW)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys = 5", "keys is 5. Allowed: tables, each [keys.NAME]"),
        ("[kyes.ta]", "'kyes' is an unknown key. Allowed: keys"),
        ("[[keys]]\nname = 'ta'", "keys is a list. Allowed: tables, each [keys.NAME]"),
        ("keys.ta = 5", "keys.ta is 5. Allowed: a table with sha256, rotated, tenant"),
        (SHORTEST + 'name = "hf"', "keys.ta is a table with a name. Allowed: a table with sha256"),
        (SHORTEST + 'expire = "x"', "keys.ta.expire is an unknown key. Allowed: sha256, "),
        (SHORTEST + 'expire = "x"', "Did you mean expires?"),
        (SHORTEST + "expires = 2027-01-01", "such as 2027-01-31T00:00:00Z"),
        (SHORTEST.replace("[keys.ta]", '[keys."a\\u001b b"]'), "keys.'a\\x1b b' is 'a\\x1b b'. Allowed: 1 to 128"),
        (SHORTEST.replace('agent = "ta"\n', ""), "keys.ta.agent is missing. Allowed: a value for agent"),
        (SHORTEST + 'rotated = { "x" = 2027-01-01T00:00:00Z }', "keys.ta.rotated is an invalid value, hidden"),
        (SHORTEST + SHORTEST.replace(".ta]", ".hf]"), "keys.hf.sha256 is the same as that of ta. Allowed: a diff"),
        ("[keys", "the file is not valid TOML (Expected ']'"),
        ("a = " + "[" * 5000, "the file is not valid TOML (nested too deep"),
    ],
)  # fmt: skip
def test_mistake_in_the_file_is_named(text: str, said: str, file: ApiKeyFile) -> None:
    file.path.write_text(text, encoding="utf-8")

    assert any(said in problem for problem in refusal(file.path))


def test_pasted_secret_is_not_shown(file: ApiKeyFile) -> None:
    file.path.write_text(SHORTEST.replace(DIGEST, f"agt_{DIGEST}"), encoding="utf-8")

    [said] = refusal(file.path)
    assert said.startswith(
        "keys.ta.sha256 is an invalid value, hidden because it may contain a secret. Allowed: "
    )


def test_all_mistakes_are_listed(file: ApiKeyFile) -> None:
    file.path.write_text(
        SHORTEST + 'max_output_tokens = "1"\n[keys.hf]\njson_schema = "no"\n', encoding="utf-8"
    )

    assert len(refusal(file.path)) == 6


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "is missing. Allowed: a file that `agentic-trading api-keys create` has written"),
        (os.mkfifo, "is unreadable (a FIFO, not a regular file)"),
        (Path.mkdir, "is unreadable (a folder, not a regular file)"),
        (lambda path: path.write_bytes(b"\xff"), "is unreadable (not UTF-8: byte 1)"),
        (lambda path: path.symlink_to(path.name), "is unreadable (Too many levels of symbolic links)"),
    ],
)
def test_unreadable_file_stops_the_start(make: Any, said: str, file: ApiKeyFile) -> None:
    make(file.path)

    with pytest.raises(ConfigError) as caught:
        ApiKeys(file.path, SimClock(NOW))
    assert str(caught.value).startswith(f"{file.path} {said}")


def test_damaged_file_is_never_replaced(file: ApiKeyFile) -> None:
    file.path.write_text(SHORTEST + "half = ", encoding="utf-8")

    for change in (
        lambda: created(file, "hf"),
        lambda: file.revoke("ta", NOW),
        lambda: file.rotate("ta", NOW, HOUR),
    ):
        with pytest.raises(ConfigError, match="not valid TOML"):
            change()
    assert file.path.read_text(encoding="utf-8") == SHORTEST + "half = "


def test_file_is_private_whatever_was_there(file: ApiKeyFile) -> None:
    modes = []
    for number in range(2):
        created(file, f"key-{number}")
        modes += [each.stat().st_mode & 0o777 for each in file.path.parent.iterdir()]
        for each in file.path.parent.iterdir():
            each.chmod(0o666)

    assert modes == [0o600] * 4


def test_file_keeps_its_owner(file: ApiKeyFile) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    created(file, "ta")
    os.chown(file.path, 12_345, 23_456)

    file.revoke("ta", NOW)

    status = file.path.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (12_345, 23_456, 0o600)


def test_linked_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "api-keys.toml"
    link.symlink_to("elsewhere/keys.toml")

    with pytest.raises(ConfigError, match=r"a link to elsewhere/keys\.toml, which is missing"):
        ApiKeyFile(link).read()
    secret = created(ApiKeyFile(link))

    assert link.is_symlink()
    assert [each.name for each in tmp_path.iterdir() if not each.is_dir()] == ["api-keys.toml"]
    assert names_found(ApiKeys(link, SimClock(NOW)), secret) == ["ta"]


def test_unwritable_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "api-keys.toml.new").mkdir()

    with pytest.raises(ConfigError, match=r"is not writable \((Not a directory|File exists)\)"):
        created(ApiKeyFile(tmp_path / "file" / "api-keys.toml"))
    with pytest.raises(ConfigError, match=r"api-keys\.toml\.new is not writable \(Is a directory\)"):
        created(ApiKeyFile(tmp_path / "api-keys.toml"))


def test_name_is_used_once(file: ApiKeyFile) -> None:
    created(file)
    file.revoke("ta", NOW)
    before = file.path.read_bytes()

    with pytest.raises(
        OptionError, match=r"NAME is 'ta', which .*/api-keys.toml already has\. Allowed: a new name"
    ):
        created(file)
    assert file.path.read_bytes() == before


def test_unknown_name_lists_the_known_ones(file: ApiKeyFile) -> None:
    with pytest.raises(OptionError, match=r"does not have\. Allowed: none: create a key first"):
        file.revoke("ta", NOW)
    created(file, "trading-agents")
    with pytest.raises(OptionError, match=r"Allowed: trading-agents\. Did you mean trading-agents\?"):
        file.rotate("tradin-agents", NOW, HOUR)


def test_unknown_key_creates_no_file(tmp_path: Path) -> None:
    file = ApiKeyFile(tmp_path / "wrong" / "api-keys.toml")

    for change in (lambda: file.revoke("ta", NOW), lambda: file.rotate("ta", NOW, HOUR)):
        with pytest.raises(OptionError, match="does not have"):
            change()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(60)  # two starts of Python
def test_two_processes_lose_no_key(file: ApiKeyFile) -> None:
    command = [sys.executable, "-c", ADDING, str(file.path)]
    processes = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for name in "ab"
    ]
    for each in processes:
        assert each.stdout is not None
        assert each.stdout.readline() == b"ready\n"
    for each in processes:
        assert each.stdin is not None
        each.stdin.write(b"\n")
        each.stdin.flush()
    for each in processes:
        each.communicate()

    assert [each.returncode for each in processes] == [0, 0]
    assert sorted(file.read()) == sorted(f"{name}-{number}" for name in "ab" for number in range(20))


# --- followed --------------------------------------------------------------------------------------------


def replaced(path: Path, content: bytes | None) -> None:
    """Replace a file. None removes it."""
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


async def test_changes_are_followed(file: ApiKeyFile) -> None:
    first, clock = await on_thread(created, file, "ta"), Steps()
    keys = await on_thread(ApiKeys, file.path, clock)

    async with asyncio.timeout(10), keys.followed():
        second = await on_thread(created, file, "hf")
        before = names_found(keys, first, second)
        await clock.step()
        added = names_found(keys, first, second)
        await on_thread(file.revoke, "ta", NOW)
        _, third = await on_thread(file.rotate, "hf", SystemClock().now(), timedelta())
        await clock.step()
        changed = names_found(keys, first, second, third)

    assert (before, added, changed) == (["ta", None], ["ta", "hf"], [None, None, "hf"])
    assert keys.problem is None


async def test_bad_file_keeps_the_last_keys(file: ApiKeyFile) -> None:
    secret, clock, problems = await on_thread(created, file), Steps(), list[str | None]()
    good = await on_thread(file.path.read_bytes)
    keys = await on_thread(ApiKeys, file.path, clock)

    with structlog.testing.capture_logs() as logs:
        async with asyncio.timeout(10), keys.followed():
            for content in (b"[keys.ta]\nsha256 = 5", b"[keys.ta]\nsha256 = 5", b"[keys", None, good, b""):
                await on_thread(replaced, file.path, content)
                await clock.step()
                problems.append(keys.problem)
                assert names_found(keys, secret) == (["ta"] if content != b"" else [None])

    texts = [(problem or "").partition(" Allowed")[0].removeprefix(f"{file.path}") for problem in problems]
    assert texts[0].startswith("4 problems")
    assert texts[1] == texts[0]
    assert texts[2].startswith(": the file is not valid TOML")
    assert texts[3:] == [" is missing.", "", ""]
    assert [line["event"] for line in logs] == [*["api_keys_not_renewed"] * 3, *["api_keys_renewed"] * 2]
    assert secret not in json.dumps(logs)


async def test_restored_file_ends_the_problem(file: ApiKeyFile, tmp_path: Path) -> None:
    secret, clock = await on_thread(created, file), Steps()
    keys = await on_thread(ApiKeys, file.path, clock)

    async with asyncio.timeout(10), keys.followed():
        await on_thread(file.path.rename, tmp_path / "away")
        await clock.step()
        missing = keys.problem
        await on_thread((tmp_path / "away").rename, file.path)
        await clock.step()

    assert missing is not None
    assert "is missing" in missing
    assert (keys.problem, names_found(keys, secret)) == (None, ["ta"])


async def test_error_of_the_block_is_raised_as_it_is(file: ApiKeyFile) -> None:
    await on_thread(created, file)
    keys = await on_thread(ApiKeys, file.path, Steps())

    with pytest.raises(LookupError, match="own mistake"):
        async with keys.followed():
            raise LookupError("own mistake")


async def test_unexpected_error_is_a_problem_and_following_continues(
    file: ApiKeyFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, clock = await on_thread(created, file), Steps()
    keys = await on_thread(ApiKeys, file.path, clock)

    def broken(*_: Any) -> None:
        raise RuntimeError("no more threads")

    async with asyncio.timeout(10), keys.followed():
        with monkeypatch.context() as patched:
            patched.setattr(server, "_stamp_of", broken)
            await clock.step()
            during = keys.problem
        await clock.step()

    assert during == "RuntimeError: no more threads"
    assert (keys.problem, names_found(keys, secret)) == (None, ["ta"])


async def test_policy_is_checked_after_changes(file: ApiKeyFile, tmp_path: Path) -> None:
    first, clock = await on_thread(created, file, "ta", principal="desk-a"), Steps()
    keys = await on_thread(ApiKeys, file.path, clock)
    keys.check(await on_thread(policy, tmp_path))

    async with asyncio.timeout(10), keys.followed():
        second = await on_thread(created, file, "hf")
        await clock.step()

    assert names_found(keys, first, second) == ["ta", None]
    assert keys.problem is not None
    assert "keys.hf.principal is not set, but policy.toml names principals" in keys.problem


async def test_signing_is_checked_after_changes_with_the_signing_keys_of_then(file: ApiKeyFile) -> None:
    first, clock = await on_thread(created, file, "ta", principal="desk-a"), Steps()
    keys, signers = await on_thread(ApiKeys, file.path, clock), {"desk-a"}
    keys.check_signing("", lambda: signers)

    async with asyncio.timeout(10), keys.followed():
        second = await on_thread(created, file, "hf", principal="desk-b")
        await clock.step()
        before, problem = names_found(keys, first, second), keys.problem
        signers.add("desk-b")
        await clock.step()
        after = names_found(keys, first, second)

    assert (before, after, keys.problem) == (["ta", None], ["ta", "hf"], None)
    assert problem is not None
    assert "keys.hf.principal is 'desk-b', which has no signing key" in problem


@pytest.mark.parametrize("end", [{"revoked": NOW}, {"expires": NOW}])
async def test_keys_that_cannot_be_used_need_no_principal(
    file: ApiKeyFile, tmp_path: Path, end: dict[str, Any]
) -> None:
    first, clock = await on_thread(created, file, "ta", principal="desk-a"), Steps()
    keys = await on_thread(ApiKeys, file.path, clock)
    keys.check(await on_thread(policy, tmp_path))
    keys.check_signing("", lambda: {"desk-a"})

    async with asyncio.timeout(10), keys.followed():
        await on_thread(created, file, "hf", **end)
        await clock.step()

    assert (names_found(keys, first), keys.problem, "hf" in keys.names) == (["ta"], None, True)


def test_amounts_are_exact(file: ApiKeyFile) -> None:
    created(file, usd_per_call="0.000000001", usd_per_trace="9007199")

    key = file.read()["ta"]

    assert (key.usd_per_call, key.usd_per_trace) == (Decimal("0.000000001"), Decimal(9_007_199))
    assert key.budget().max_cost_nusd == 1

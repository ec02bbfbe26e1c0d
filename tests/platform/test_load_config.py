"""Arguments go before the environment, that before the file, that before defaults; nothing is passed over in silence."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.platform import ConfigError, PlatformConfig, ProviderConfig, load_config

FILE = """
name = "desk-eu"
folder = "logs"
models_file = "models.json"

[providers.anthropic]
[providers.vllm-a]
adapter = "openai"
base_url = "http://10.0.0.5:8000/v1"
secret = "vllm_token"
[[providers.vllm-a.models]]
model = "qwen3-8b"
context_tokens = 32768
max_output_tokens = 4096
price = { input = 20, output = 150 }
source = "own cluster"
checked_on = 2026-11-22

[fallback.analysis]
to = ["vllm-a/qwen3-8b"]

[tenants.acme]
budget_usd = "25"
window = "day"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "etc" / "gateway.toml"
    path.parent.mkdir()
    path.write_text(FILE, encoding="utf-8")
    return path


def refused(path: Path | None = None, **overrides: Any) -> list[str]:
    """Return the problems for which loading is refused."""
    with pytest.raises(ConfigError) as error:
        load_config(path, **overrides)
    return list(map(str, error.value.problems))


def test_configuration_without_file_is_the_default() -> None:
    config = load_config()

    assert config == PlatformConfig(weights_folder=Path("/home/trader/.cache/agentic-trading/models"))
    assert config.origin_of("name") == config.origin_of("weights_folder") == "default"


def test_configuration_file_is_read_only_from_cwd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "agentic-trading.toml").write_text('name = "here"\n', encoding="utf-8")
    assert load_config().name == "here"

    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert load_config().name == ""


def test_named_file_precedes_variable_and_local_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Path
) -> None:
    (tmp_path / "agentic-trading.toml").write_text('name = "here"\n', encoding="utf-8")
    (tmp_path / "other.toml").write_text('name = "other"\n', encoding="utf-8")
    monkeypatch.setenv("AGENTIC_CONFIG", "other.toml")

    assert load_config().name == "other"
    assert load_config(file).name == "desk-eu"


def test_file_paths_are_relative_to_folder(file: Path) -> None:
    config = load_config(file, prices_file="prices.json")

    assert (config.models_file, config.prices_file) == (file.parent / "models.json", Path("prices.json"))


def test_sources_merge_in_order_of_precedence(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("AGENTIC_PROVIDERS__VLLM_A__BASE_URL", "http://10.0.0.6/v1")
    monkeypatch.setenv("AGENTIC_NAME", "desk-us")
    monkeypatch.setenv("AGENTIC_TENANTS__ACME__CALLS", "7")
    monkeypatch.setenv("AGENTIC_FALLBACK__ANALYSIS__ON", "timeout, server_error")

    config = load_config(file, name="desk-jp", tenants={"acme": {"budget_usd": "3"}}, zone=None)

    row, acme = config.providers["vllm-a"], config.tenants["acme"]
    assert (row.adapter, row.base_url, row.secret) == ("openai", "http://10.0.0.6/v1", "vllm_token")
    assert (config.name, str(acme.budget_usd), acme.window, acme.calls) == ("desk-jp", "3", "day", 7)
    places = {
        "name": "argument",
        "providers.vllm-a.base_url": "AGENTIC_PROVIDERS__VLLM_A__BASE_URL",
        "providers.vllm-a.secret": str(file),
        "providers.vllm-a.models.0.price.input": str(file),
        "providers.anthropic.base_url": "default",
        "tenants.acme.budget_usd": "argument",
        "tenants.acme.calls": "AGENTIC_TENANTS__ACME__CALLS",
        "zone": "default",
    }
    assert {place: config.origin_of(place) for place in places} == places


def test_established_variable_names_still_work(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("AGENTIC_LEDGER_URL", "redis://127.0.0.1")
    monkeypatch.setenv("AGENTIC_POLICY_FILE", "~/policy.toml")
    monkeypatch.setenv("AGENTIC_SECRETS_DIR", "/run/secrets")
    monkeypatch.setenv("AGENTIC_MODELS_DIR", "weights")
    monkeypatch.setenv("AGENTIC_MODELS_FILE", "own.json")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-one")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("VLLM_TOKEN", "sk-two")
    monkeypatch.setenv("AGENTIC_LOG_LEVEL", "debug")
    monkeypatch.setenv("AGENTIC_ZONE", "")

    config = load_config(file)

    assert (config.ledger.url, config.policy) == ("redis://127.0.0.1", Path("/home/trader/policy.toml"))
    assert (config.secrets_folder, config.weights_folder) == (Path("/run/secrets"), Path("weights"))
    assert (config.models_file, config.zone) == (Path("own.json"), "UTC")
    assert config.providers["anthropic"].base_url == "http://127.0.0.1:9"
    assert config.origin_of("providers.anthropic.base_url") == "ANTHROPIC_BASE_URL"
    keys = [config.secret_of(name) for name in ("anthropic", "vllm-a")]
    assert [key and key.get_secret_value() for key in keys] == ["sk-one", "sk-two"]
    assert "sk-one" not in f"{config!r} {config.public_values()}"


def test_variable_cannot_add_provider_or_tenant(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("AGENTIC_PROVIDERS__ANTHROPICS__BASE_URL", "http://127.0.0.1")
    monkeypatch.setenv("AGENTIC_TENANTS__BETA__CALLS", "7")

    assert refused(file) == [
        (
            "AGENTIC_PROVIDERS__ANTHROPICS__BASE_URL: providers.anthropics is not a provider of the file "
            "or the code. Allowed: anthropic, vllm-a. Did you mean anthropic?"
        ),
        ("AGENTIC_TENANTS__BETA__CALLS: tenants.beta is not a tenant of the file or the code. Allowed: acme"),
    ]


def test_variable_may_change_coded_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_PROVIDERS__HOUSE__SECRET", "house_token")

    config = load_config(providers={"house": ProviderConfig(adapter="acme_llm:HouseProvider")})

    assert config.providers["house"] == ProviderConfig(adapter="acme_llm:HouseProvider", secret="house_token")  # noqa: S106 - the name of a variable


@pytest.mark.parametrize(
    ("variable", "near"),
    [
        ("AGENTIC_LEGDER_URL", "AGENTIC_LEDGER_URL"),
        ("AGENTIC_POLICY", "AGENTIC_POLICY_FILE"),
        ("AGENTIC_LEDGER__URL", "AGENTIC_LEDGER_URL"),
        ("AGENTIC_PROVIDERS", ""),
        ("AGENTIC_PROVIDERS__ANTHROPIC__API_KEY", ""),
        ("AGENTIC_PROVIDERS__ANTHROPIC__MODELS", ""),
        ("AGENTIC_BUS__UTL", ""),
    ],
)
def test_unread_variable_is_refused(
    monkeypatch: pytest.MonkeyPatch, file: Path, variable: str, near: str
) -> None:
    monkeypatch.setenv(variable, "sesame")

    [problem] = refused(file)

    assert problem.startswith(
        f"{variable} is not a known variable. Allowed: AGENTIC_ACK_AFTER, AGENTIC_CONCURRENCY, "
    )
    assert problem.endswith(f". Did you mean {near}?" if near else "AGENTIC_TENANTS__ID__KEY")
    assert "sesame" not in problem


def test_problems_of_all_sources_are_reported_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('[bus]\nurl = "kafka://broker"\n[tenants.acme]\nbudget_usd = 0.5\n', encoding="utf-8")
    monkeypatch.setenv("AGENTIC_CONCURRENCY", "many")
    monkeypatch.setenv("AGENTIC_FOO", "1")

    found = refused(path, mode="live")

    assert [problem.partition(" is ")[0] for problem in found] == [
        "AGENTIC_FOO",
        "argument: mode",
        "AGENTIC_CONCURRENCY: concurrency",
        f"{path}: bus.url",
        f"{path}: tenants.acme.budget_usd",
    ]
    assert 'dollars as text, such as "0.5"' in found[4]


TOO_DEEP = "nested too deep: at most 32 levels of tables and arrays are allowed"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        (
            "none.toml",
            None,
            "--config is none.toml, which cannot be read (No such file or directory). Allowed: ",
        ),
        (
            "broken.toml",
            b"name = ",
            "broken.toml: the file is not valid TOML (Invalid value (at end of document)). Allowed: ",
        ),
        (
            "bytes.toml",
            b"\xff",
            "--config is bytes.toml, which cannot be read (not UTF-8: byte 1). Allowed: ",
        ),
        (
            "mark.toml",
            b"\xef\xbb\xbfname = 1",
            "--config is mark.toml, which cannot be read (a byte order mark: ",
        ),
        ("nul.toml", b"\nname = '\0'", "--config is nul.toml, which cannot be read (a NUL byte in line 2). "),
        (
            "arrays.toml",
            b"a = " + b"[" * 5000 + b"]" * 5000,
            f"arrays.toml: the file is not valid TOML ({TOO_DEEP}). ",
        ),
        (
            "tables.toml",
            b"a = " + b"{b=" * 40 + b"1" + b"}" * 40,
            f"tables.toml: the file is not valid TOML ({TOO_DEEP}). ",
        ),
        (
            "dotted.toml",
            b"a" + b".a" * 20_000 + b" = 1",
            f"dotted.toml: the file is not valid TOML ({TOO_DEEP}). ",
        ),
        (
            "quoted.toml",
            b"'a'" + b" . 'a'" * 20_000 + b" = 1",
            f"quoted.toml: the file is not valid TOML ({TOO_DEEP}). ",
        ),
        ("header.toml", b"[a" + b".a" * 60 + b"]", f"header.toml: the file is not valid TOML ({TOO_DEEP}). "),
        (
            "digits.toml",
            b"concurrency = " + b"9" * 10_000,
            "digits.toml: the file is not valid TOML (a whole number has ",
        ),
    ],
)
def test_unreadable_file_is_named(name: str, content: bytes | None, problem: str) -> None:
    if content is not None:
        Path(name).write_bytes(content)

    [found] = refused(Path(name))

    assert found.startswith(problem)


def test_overlong_number_in_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_CONCURRENCY", "9" * 5000)

    [found] = refused()

    assert found.startswith("AGENTIC_CONCURRENCY: concurrency is '999")
    assert len(found) < 300


def test_file_named_by_variable_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTIC_CONFIG", "none.toml")

    assert refused() == [
        "AGENTIC_CONFIG is none.toml, which cannot be read (No such file or directory). Allowed: a readable TOML file"
    ]


def test_invalid_table_is_reported_as_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("agentic-trading.toml").write_text('providers = "anthropic"\ntenants = 1\n', encoding="utf-8")
    monkeypatch.setenv("AGENTIC_PROVIDERS__ANTHROPIC__SECRET", "x")

    assert [problem.partition(" is ")[0] for problem in refused()] == [
        "AGENTIC_PROVIDERS__ANTHROPIC__SECRET: providers.anthropic",
        "agentic-trading.toml: providers",
        "agentic-trading.toml: tenants",
    ]


@pytest.mark.parametrize(
    ("text", "variable", "place"),
    [
        ('ledger = "here"', "AGENTIC_LEDGER_URL", "ledger"),
        ('[providers]\nhouse = "here"', "AGENTIC_PROVIDERS__HOUSE__SECRET", "providers.house"),
        ("fallback = 1", "AGENTIC_FALLBACK__ANALYSIS__TO", "fallback"),
    ],
)
def test_variable_for_invalid_table_blames_file(
    monkeypatch: pytest.MonkeyPatch, text: str, variable: str, place: str
) -> None:
    Path("agentic-trading.toml").write_text(text, encoding="utf-8")
    monkeypatch.setenv(variable, "redis://127.0.0.1")

    [problem] = refused()

    assert problem.startswith(f"agentic-trading.toml: {place} is ")
    assert problem.endswith("Allowed: a table")


NAMES = st.from_regex(r"[a-z]{7}[a-z0-9-]{0,9}", fullmatch=True)
MODELS = st.builds("{}/{}".format, NAMES, st.from_regex(r"[A-Za-z0-9._/-]{1,20}", fullmatch=True))
PROVIDERS = st.fixed_dictionaries(
    {},
    optional={
        "adapter": st.sampled_from(["openai", "acme_llm:HouseProvider"]),
        "base_url": st.just("http://10.0.0.5:8000/v1"),
        "secret": NAMES,
        "options": st.dictionaries(
            NAMES, st.integers(-(10**20), 10**20) | st.text() | st.booleans(), max_size=2
        ),
        "models": st.just([
            {
                "model": "quant-7b",
                "context_tokens": 10,
                "max_output_tokens": 5,
                "source": "own",
                "checked_on": "2026-11-22",
                "price": {"input": 1, "output": 2},
            }
        ]),
    },
)
TENANTS = st.fixed_dictionaries(
    {},
    optional={
        "budget_usd": st.integers(0, 10**6).map(str) | st.decimals(0, 100, places=9).map("{:f}".format),
        "window": st.sampled_from(["none", "day", "month"]),
        "calls": st.integers(0, 100),
        "provider_keys": st.sampled_from(["own", "shared"]),
    },
)
CONFIGS = st.fixed_dictionaries(
    {"secrets_folder": st.just("/run/secrets")},
    optional={
        "name": NAMES,
        "folder": st.just("logs"),
        "mode": st.sampled_from(["backtest", "paper"]),
        "concurrency": st.integers(1, 256),
        "ledger": st.just({"url": "rediss://ledger:6379"}),
        "models": st.dictionaries(st.sampled_from(["analysis", "execution"]), MODELS),
        "providers": st.dictionaries(NAMES, PROVIDERS, max_size=3),
        "fallback": st.just({"analysis": {"to": ["house-a/quant-7b"]}}),
        "tenants": st.dictionaries(NAMES, TENANTS, max_size=3),
    },
)


@given(CONFIGS)
def test_public_values_load_back_unchanged(fields: dict[str, Any]) -> None:
    config = PlatformConfig(**fields)

    shown = config.public_values()

    assert PlatformConfig(**shown) == config
    assert load_config(**{**shown, "weights_folder": "w"}) == config.model_copy(
        update={"weights_folder": Path("w")}
    )
    assert PlatformConfig(**shown).config_sha256 == config.config_sha256


@pytest.mark.parametrize("value", [10**21, math.nan, [math.inf]])
def test_unhashable_option_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"providers\.house\.options is .*Allowed: text, booleans, finite"):
        PlatformConfig.model_validate({"providers": {"house": {"options": {"seed": value}}}})

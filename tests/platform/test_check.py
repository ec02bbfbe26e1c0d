"""A configuration is checked as a whole: adapters, keys, tables, policy and principals, and nothing is sent."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentic_trading.clock import SimClock
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.platform import PlatformConfig, ProviderConfig, ProviderContext, load_config
from agentic_trading.platform.check import check_platform

CLAUDE = "anthropic/claude-sonnet-5-5"
POLICY = '[principals.desk-a]\ntenants = ["default"]\nmodels = ["rules/*"]\n'


def found(config: PlatformConfig) -> list[str]:
    clock = SimClock(datetime(2026, 11, 22, tzinfo=UTC))
    return [str(problem) for problem in asyncio.run(check_platform(config, clock))]


def test_usable_configuration_has_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-1")
    served = {
        "anthropic": ProviderConfig(),
        "vllm-a": ProviderConfig(adapter="openai", base_url="http://h/v1"),
    }

    assert found(load_config(providers=served, models={"analysis": CLAUDE})) == []


def test_every_problem_is_found_at_once(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[principals.desk-a]\n", encoding="utf-8")
    (tmp_path / "gateway.toml").write_text(
        'prices_file = "none.json"\npolicy = "policy.toml"\n'
        '[providers.anthropic]\n[providers.house]\nadapter = "nowhere:make"\n',
        encoding="utf-8",
    )

    problems = found(load_config(tmp_path / "gateway.toml"))

    file = str(tmp_path / "gateway.toml")
    assert [problem.partition(" is ")[0] for problem in problems] == [
        f"{file}: providers.house.adapter",
        f"{file}: prices_file",
        "ANTHROPIC_API_KEY: providers.anthropic.secret",
        f"{file}: policy",
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"models": {"analysis": "house/q"}},
            "code: models.analysis is house/q, whose provider is not configured. Allowed: openai",
        ),
        (
            {"fallback": {"analysis": {"to": ["openai/q"]}}},
            "code: fallback.analysis.to is openai/q, which is not in the table of models. Allowed: ",
        ),
        (
            {"models": {"analysis": "openai/unpriced"}},
            "code: models.analysis is openai/unpriced, which has no price. Allowed: ",
        ),
        (
            {"models": {"analysis": "openai/old"}},
            "code: models.analysis is openai/old, which retired on 2026-11-21. Allowed: ",
        ),
    ],
)
def test_unusable_model_is_found(fields: dict[str, Any], problem: str) -> None:
    row = {"context_tokens": 1, "max_output_tokens": 1, "source": "x", "checked_on": "2026-11-22"}
    rows = [{**row, "model": "unpriced"}, {**row, "model": "old", "retires_on": "2026-11-21"}]
    served = {"openai": {"base_url": "http://h/v1", "models": rows}}

    [one] = found(PlatformConfig(**{"providers": served, **fields}))

    assert one.startswith(problem)


class Unclosable(ScriptedProvider):
    """An adapter of a third party that cannot be closed."""

    def __init__(self, _context: ProviderContext) -> None:
        super().__init__([])

    async def aclose(self) -> None:
        raise OSError("the socket is gone")


def test_unclosable_provider_is_a_separate_problem(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(
        f'policy = "none.toml"\n[providers.house]\nadapter = "{__name__}:Unclosable"\n', encoding="utf-8"
    )

    unclosable, policy = found(load_config(tmp_path / "gateway.toml"))

    assert unclosable == (
        f"{tmp_path}/gateway.toml: providers.house.adapter is {__name__}:Unclosable, which cannot be closed "
        "(OSError: the socket is gone). Allowed: an adapter that can be imported, created, and closed"
    )
    assert "policy is " in policy


def test_principals_need_keys_and_known_signer(tmp_path: Path) -> None:
    policy, keys = tmp_path / "policy.toml", tmp_path / "keys"
    policy.write_text(POLICY, encoding="utf-8")
    keys.mkdir()
    (keys / "other").write_text("k" * 32)
    fields: dict[str, Any] = {"policy": policy, "principals_folder": keys, "sign_as": "desk-b"}

    [missing] = found(PlatformConfig(**fields))
    (keys / "desk-a").write_text("a" * 32)
    [unknown] = found(PlatformConfig(**fields))

    assert missing.startswith("code: principals_folder is ")
    assert "desk-a" in missing
    assert unknown == "code: sign_as is 'desk-b'. Allowed: desk-a"
    assert found(PlatformConfig(**{**fields, "sign_as": "desk-a"})) == []

"""The page of the configuration keeps up with it: its file loads, and every key is explained."""

import re
from pathlib import Path

import pytest

from agentic_trading.platform import (
    BusConfig,
    FallbackConfig,
    PlatformConfig,
    ProviderConfig,
    TenantConfig,
    load_config,
)

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    [code] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


def test_file_of_the_page_loads(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(block("toml"), encoding="utf-8")

    config = load_config(file)

    assert list(config.providers) == ["anthropic", "vllm-a", "house"]
    assert config.models_file == tmp_path / "models.json"
    assert config.tenants["acme"].provider_keys == "own"


def test_code_of_the_page_runs() -> None:
    Path("agentic-trading.toml").write_text(block("toml"), encoding="utf-8")
    names: dict[str, PlatformConfig] = {}

    exec(block("python"), names)  # noqa: S102 - the page's own example

    assert names["in_code"].tenant_ids == ("acme",)
    assert names["loaded"].name == "desk-us"


@pytest.mark.parametrize("table", [PlatformConfig, BusConfig, ProviderConfig, TenantConfig, FallbackConfig])
def test_every_key_is_on_the_page(table: type[PlatformConfig]) -> None:
    named = set(re.findall(r"\b[a-z_]+\b", " ".join(re.findall(r"`[^`\n]+`", PAGE))))

    assert set(table.model_fields) <= named

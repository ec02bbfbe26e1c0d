"""Adapters are found by one mechanism, loaded when they are named, and what is none of them is refused by name."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from agentic_trading.bus.errors import SigningKeyError
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.models import Capabilities, TableError
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider
from agentic_trading.llm.providers.anthropic.provider import AnthropicSdkProvider
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.offline import ScriptedProvider
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.llm.result import Usage
from agentic_trading.platform import (
    ConfigError,
    ModelConfig,
    PlatformConfig,
    ProviderConfig,
    TenantConfig,
    load_config,
)
from agentic_trading.platform.adapters import (
    GROUP,
    ProviderContext,
    ShippedAdapter,
    factory_of,
    keys_of,
    provider_of,
)
from agentic_trading.platform.port_adapters import boards_of
from agentic_trading.platform.signing_keys import signing_keys_of
from agentic_trading.platform.tables import tables_of
from tests.build import envelope
from tests.desk.session.asking import own_rows

HOUSE = '''
"""An adapter of somebody else."""
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.platform import ModelConfig, PriceConfig

class HouseProvider:
    def __init__(self, context):
        self._keys, self._region = context.keys, context.config.options["region"]

    @staticmethod
    def models():
        price = PriceConfig(input=20, output=150)
        return [ModelConfig(model="quant-7b", context_tokens=32768, max_output_tokens=4096, price=price,
                            source="own cluster", checked_on="2026-11-22")]

    async def complete(self, request):
        key = await self._keys.key_of(request.envelope.tenant_id)
        return ModelResponse(f"{self._region} with {key}", "stop", Usage(input_tokens=1, output_tokens=1), "quant-7b")

    async def count_tokens(self, request):
        return None

    async def aclose(self):
        pass

class Half:
    def __init__(self, context): ...
    async def complete(self, request): ...

def broken(context):
    raise RuntimeError("the cluster has no such region")

NUMBER = 7
'''
METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(folder: Path, name: str, module: str, offers: str) -> Path:
    """Build the wheel of a package with one module that offers an adapter."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    files = {
        f"{module}.py": HOUSE,
        f"{info}/METADATA": METADATA.format(name=name),
        f"{info}/WHEEL": WHEEL,
        f"{info}/entry_points.txt": f"[{GROUP}]\n{offers}\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return path


def install(wheel: Path, target: Path) -> Path:
    """Install a wheel into a folder, without a network."""
    words = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([sys.executable, *words, "--target", str(target), str(wheel)], check=True)
    return target


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which the wheel of a third party was installed."""
    folder = tmp_path_factory.mktemp("wheel")
    return install(
        build_wheel(folder, "acme_llm", "acme_llm", "house = acme_llm:HouseProvider"), folder / "site"
    )


@pytest.fixture
def acme(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(installed))
    return installed


def context(name: str, config: ProviderConfig | None = None) -> ProviderContext:
    return ProviderContext(name, config or ProviderConfig(), OneKey("k"), Capabilities([]))


def refused(name: str, config: ProviderConfig) -> str:
    with pytest.raises(ConfigError) as error:
        provider_of(context(name, config), origin="gateway.toml")
    return str(error.value)


def test_built_in_providers_are_entry_points() -> None:
    factories = {str(name): factory_of(name, ProviderConfig()) for name in LLMProvider}

    assert all(isinstance(factory, ShippedAdapter) for factory in factories.values())


def test_two_names_may_share_an_adapter() -> None:
    made = [
        provider_of(context(name, ProviderConfig(adapter="openai", base_url=f"http://{name}/v1")))
        for name in ("vllm-a", "vllm-b")
    ]

    assert all(isinstance(provider, OpenAIProvider) for provider in made)
    assert made[0] is not made[1]


def test_installed_package_provides_an_adapter(acme: Path) -> None:
    provider = provider_of(context("house", ProviderConfig(options={"region": "eu"})))

    answer = asyncio.run(provider.complete(ModelRequest(envelope(), 1, 1, "", "", "text", max_tokens=8)))

    assert answer.text == "eu with k"
    assert sys.modules["acme_llm"].__file__ == str(acme / "acme_llm.py")


def test_only_a_named_adapter_is_loaded(acme: Path) -> None:
    listing = (
        "import json, sys\n"
        "from agentic_trading.platform.adapters import factory_of\n"
        "from agentic_trading.platform import ProviderConfig\n"
        "factory_of('scripted', ProviderConfig()); before = 'acme_llm' in sys.modules\n"
        "factory_of('house', ProviderConfig())\n"
        "print(json.dumps([before, 'acme_llm' in sys.modules, 'anthropic' in sys.modules, 'openai' in sys.modules]))"
    )

    done = subprocess.run(
        [sys.executable, "-c", listing], env={"PYTHONPATH": str(acme)}, capture_output=True, check=True
    )

    assert json.loads(done.stdout) == [False, True, False, False]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "adapter", "options", "says"),
    [
        ("hous", None, {}, "providers.hous.adapter is 'hous', which no installed package offers. Allowed: "),
        ("a", "nowhere:make", {}, "cannot be created (ModuleNotFoundError: No module named 'nowhere')"),
        (
            "a",
            "acme_llm:nothing",
            {},
            "cannot be created (AttributeError: module 'acme_llm' has no attribute 'nothing')",
        ),
        (
            "a",
            "acme_llm:NUMBER",
            {},
            "is acme_llm:NUMBER, which cannot be called. Allowed: a function or class",
        ),
        (
            "a",
            "acme_llm:Half",
            {},
            "which makes a Half without count_tokens, aclose. Allowed: a factory of a Provider",
        ),
        ("a", "acme_llm:broken", {}, "cannot be created (RuntimeError: the cluster has no such region)"),
        ("openai", None, {"region": "eu"}, "unknown option region. Allowed options: bill, proxy"),
        (
            "anthropic",
            None,
            {"stable_prefix_ttl": "2d"},
            "option stable_prefix_ttl must be one of '', '5m', '1h'",
        ),
        ("openai", None, {"proxy": 5}, "option proxy must be a URL"),
        ("anthropic", None, {"proxy": "http://me:pw@host"}, "with a password in it"),
        ("anthropic-sdk", None, {"client": "Anthropic"}, "option client must be one of 'AsyncAnthropic', "),
        ("anthropic-sdk", None, {"arguments": "eu"}, "option arguments must be a table"),
        (
            "anthropic-sdk",
            None,
            {"client": "AsyncAnthropicBedrock", "arguments": {"api_key": "k"}},
            "option arguments contains a secret",
        ),
        ("local", None, {}, "weights_folder is not set"),
        ("scripted", None, {"answers": "{}"}, "option answers must be a list of texts"),
    ],
)
def test_unusable_adapter_is_refused_with_reason(
    name: str, adapter: str | None, options: dict[str, Any], says: str
) -> None:
    message = refused(name, ProviderConfig(adapter=adapter, options=options))

    assert message.startswith(f"gateway.toml: providers.{name}.adapter is ")
    assert says in message


@pytest.mark.usefixtures("acme")
def test_unknown_adapter_error_lists_known_adapters() -> None:
    known = "anthropic, anthropic-sdk, house, local, openai, rules, scripted, or module:factory"

    assert refused("hous", ProviderConfig()).endswith(f"Allowed: {known}")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)  # what cannot be imported
    local = ProviderConfig(adapter="local")

    assert "xllamacpp is not installed. Run pip install 'agentic-trading[local]'" in refused("small", local)


FOLDER_ADAPTER = """
from agentic_trading.llm.providers.offline import ScriptedProvider
from answers_beside_it import ANSWER

def provider(context):
    return ScriptedProvider([ANSWER])
"""


def test_working_directory_module_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder_adapter.py").write_text(FOLDER_ADAPTER, encoding="utf-8")
    (tmp_path / "answers_beside_it.py").write_text("ANSWER = 'yes'\n", encoding="utf-8")
    config = ProviderConfig(adapter="folder_adapter:provider")

    assert isinstance(provider_of(context("a", config), factory_of("a", config)), ScriptedProvider)
    assert sys.path[-1] == str(tmp_path)  # last: it replaces no installed module


def test_missing_module_error_names_searched_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)

    message = refused("a", ProviderConfig(adapter="nowhere_llm:provider"))

    assert message.endswith(f"from an installed package or the working directory {tmp_path}")
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize("options", [{}, {"client": "AsyncAnthropicVertex", "arguments": {"region": "eu"}}])
def test_vendor_sdk_adapter_may_need_a_key(
    options: dict[str, Any],
) -> None:
    config = ProviderConfig(adapter="anthropic-sdk", options=options)
    factory = factory_of("claude", config)

    assert isinstance(provider_of(context("claude", config), factory), AnthropicSdkProvider)
    assert isinstance(factory, ShippedAdapter)
    assert factory.needs_key(config) is not bool(options)


def test_adapter_name_in_two_packages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = build_wheel(tmp_path, "beta_llm", "beta_llm", "openai = beta_llm:HouseProvider")
    monkeypatch.syspath_prepend(str(install(wheel, tmp_path / "site")))

    message = refused("openai", ProviderConfig())

    assert "is openai, which agentic-trading and beta-llm offer. Allowed: module:factory" in message.replace(
        "_", "-"
    )


class Silent:
    """A provider with rows of its own."""

    def __init__(self, _context: ProviderContext) -> None: ...

    @staticmethod
    def models() -> list[ModelConfig]:
        return [row("own-model", output=3), row("brought", output=3)]

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse("", "end_turn", Usage(), request.envelope.model)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def aclose(self) -> None: ...


def row(model: str, *, output: int) -> ModelConfig:
    return ModelConfig.model_validate({
        "model": model,
        "context_tokens": output,
        "max_output_tokens": output,
        "price": {"input": 1, "output": output},
        "source": "a test",
        "checked_on": "2026-11-22",
    })


def test_configured_row_precedes_file_and_adapter(
    tmp_path: Path,
) -> None:
    models, prices = own_rows(tmp_path, ["own-model", "filed"])
    served = ProviderConfig(models=(row("own-model", output=7),))
    config = PlatformConfig(providers={"openai": served}, models_file=models, prices_file=prices)

    capabilities, book = tables_of(config, {"openai": Silent})

    rows = {known.model: known.max_output_tokens for known in capabilities if known.provider == "openai"}
    costs = {price.model: price.output for price in book if price.provider == "openai"}
    assert rows.items() >= {"own-model": 7, "filed": 16_000, "brought": 3}.items()
    assert costs.items() >= {"own-model": 7, "filed": 2000, "brought": 3}.items()
    assert any(known.provider == "anthropic" for known in capabilities)
    assert book.name.endswith("+adapters+own+config")


class Wrong(Silent):
    """A provider whose rows are none."""

    @staticmethod
    def models() -> list[Any]:
        return [{"model": "brought"}]


def test_invalid_adapter_rows_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"providers\.openai\.adapter is openai, which cannot be created \(Validation"
    ):
        tables_of(PlatformConfig(providers={"openai": ProviderConfig()}), {"openai": Wrong})


def test_shipped_price_book_is_the_default() -> None:
    _, book = tables_of(PlatformConfig(providers={"openai": ProviderConfig()}), {})

    assert "+" not in book.name


def test_unreadable_table_is_named() -> None:
    with pytest.raises(TableError, match=r"^none.json: cannot be read"):
        tables_of(PlatformConfig(models_file=Path("none.json")), {})


def test_tenant_key_file_precedes_shared_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOUSE_TOKEN", "of-the-variable")
    tenants = {"acme": TenantConfig(provider_keys="own"), "beta": TenantConfig()}
    fields: dict[str, Any] = {"tenants": tenants, "secrets_folder": tmp_path}
    config = load_config(providers={"house": ProviderConfig(secret="house_token")}, **fields)  # noqa: S106 - a name
    keys = keys_of(config, "house")

    assert asyncio.run(keys.key_of("beta")) == "of-the-variable"
    (tmp_path / "house_token").write_text("of-all")
    assert asyncio.run(keys.key_of("beta")) == "of-all"
    with pytest.raises(
        ProviderError,
        match=r"tenant 'acme' has no key\. Write it to one of these files: [^ ]*acme/house_token",
    ):
        asyncio.run(keys.key_of("acme"))
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "house_token").write_text("of-acme")
    assert asyncio.run(keys.key_of("acme")) == "of-acme"


def test_missing_key_error_names_variable_and_file() -> None:
    keys = keys_of(load_config(providers={"house": {}}), "house")

    with pytest.raises(
        ProviderError, match=r"provider house has no key .* HOUSE_API_KEY, or a file house_api_key"
    ):
        asyncio.run(keys.key_of("default"))


def test_own_server_gets_placeholder_key() -> None:
    served = ProviderConfig(adapter="openai", base_url="http://127.0.0.1:9/v1")
    config = PlatformConfig(providers={"vllm-a": served})

    keys = keys_of(config, "vllm-a", factory_of("vllm-a", served))

    assert asyncio.run(keys.key_of("default")) == "none"


def test_scripted_answers_come_from_options() -> None:
    provider: Provider = provider_of(context("scripted", ProviderConfig(options={"answers": ['{"a":1}']})))

    answer = asyncio.run(provider.complete(ModelRequest(envelope(), 1, 1, "", "", "text", max_tokens=8)))

    assert answer.text == '{"a":1}'


def test_local_boards_are_in_the_folder(tmp_path: Path) -> None:
    controls, statuses = boards_of(None, tmp_path)

    assert asyncio.run(controls.read("default")).limits == ()
    assert asyncio.run(statuses.read("default")) == []


def test_principal_keys_come_from_folder(tmp_path: Path) -> None:
    with pytest.raises(SigningKeyError, match="has no key"):
        signing_keys_of(tmp_path, None)
    (tmp_path / "desk-a").write_text("k" * 32)

    assert signing_keys_of(tmp_path, None) == {"desk-a": (b"k" * 32,)}

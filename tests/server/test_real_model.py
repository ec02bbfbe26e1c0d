"""A real model behind llama.cpp's own HTTP server: asked by the official SDKs over three APIs, stopped, and replayed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.clock import SystemClock
from agentic_trading.server.api_keys import ApiKeyFile, new_api_key
from tests.local_model import weights_or_skip
from tests.server.conftest import started
from tests.server.test_sdks import TOOL, Advice, ask
from tests.stubs.running import serving

pytestmark = pytest.mark.timeout(120)

CONFIG = """
secrets_folder = "secrets"

[tenants.acme]
budget_usd = "1"

[providers.openai]
base_url = "{llama}/v1"

[providers.anthropic]
base_url = "{llama}"

[[providers.openai.models]]
model = "smollm2"
context_tokens = 8192
max_output_tokens = 512
source = "here"
checked_on = 2026-01-01
price = {{ input = 1, output = 1, service_tier = {{ default = [1, 1] }} }}

[[providers.anthropic.models]]
model = "smollm2"
context_tokens = 8192
max_output_tokens = 512
source = "here"
checked_on = 2026-01-01
price = {{ input = 1, output = 1, service_tier = {{ default = [1, 1], standard_only = [1, 1] }} }}
"""
MODELS = {"gpt": "openai/smollm2", "claude": "anthropic/smollm2"}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "advice",
        "strict": True,
        "schema": {**Advice.model_json_schema(), "additionalProperties": False},
    },
}


def bodies(url: str, secret: str) -> list[bytes]:
    """Return the bodies of eight calls: plain and streamed over each API, with a schema, and with a tool."""
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key=secret) as client,
        anthropic.Anthropic(base_url=url, api_key=secret) as claude,
    ):
        chat = client.chat.completions.with_streaming_response.create
        response = client.responses.with_streaming_response.create
        message = claude.messages.with_streaming_response.create
        calls: list[tuple[Callable[..., Any], dict[str, Any]]] = [
            (chat, {"messages": ask("Say hi."), "max_tokens": 12}),
            (chat, {"messages": ask("Say ho."), "max_tokens": 12, "stream": True}),
            (chat, {"messages": ask("A trend?"), "max_tokens": 60, "response_format": SCHEMA}),
            (chat, {"messages": ask("Order NVDA."), "max_tokens": 12, "tools": [TOOL]}),
            (response, {"input": "Say hi.", "max_output_tokens": 12}),
            (response, {"input": "Say ho.", "max_output_tokens": 12, "stream": True}),
            (message, {"messages": ask("Say hi."), "max_tokens": 12}),
            (message, {"messages": ask("Say ho."), "max_tokens": 12, "stream": True}),
        ]
        return [
            _body(create, {**fields, "model": "claude" if create is message else "gpt"})
            for create, fields in calls
        ]


def _body(create: Callable[..., Any], fields: dict[str, Any]) -> bytes:
    with create(**fields) as answer:
        return b"".join(answer.iter_bytes())


def test_answers_of_a_real_model_are_replayed_byte_for_byte_without_it(tmp_path: Path) -> None:
    weights_or_skip()
    (tmp_path / "secrets").mkdir()
    for name in ("openai", "anthropic"):
        (tmp_path / "secrets" / f"{name}_api_key").write_text("sk-upstream")
    key, secret = new_api_key(
        "desk", SystemClock().now(), {"tenant": "acme", "agent": "trader-1", "models": MODELS}
    )
    ApiKeyFile(tmp_path / "api-keys.toml").add(key)
    with serving("tests.stubs.llama_server") as llama:
        (tmp_path / "agentic-trading.toml").write_text(CONFIG.format(llama=llama))
        with started(tmp_path, "--store", "log") as (url, process):
            live = bodies(url, secret)
            process.ends()

    with started(tmp_path, "--provider", "recorded", "--from", "log") as (url, process):
        again = bodies(url, secret)
        process.ends()

    assert process.returncode == ExitCode.DONE
    assert again == live
    chat, response, message = (json.loads(live[place]) for place in (0, 4, 6))
    assert chat["choices"][0]["message"]["content"]
    assert response["output"][-1]["content"][0]["text"]
    assert message["content"][0]["text"]
    # A small model may reach the output limit within a text of its answer.
    assert json.loads(live[2])["choices"][0]["message"]["content"].lstrip().startswith("{")
    assert [body.endswith(b"data: [DONE]\n\n") for body in live] == [False, True, *[False] * 6]
    assert b"event: response.completed" in live[5] or b"event: response.incomplete" in live[5]
    assert b"event: message_stop" in live[7]

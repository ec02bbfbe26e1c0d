"""Keys come from where the tenant's are, as they are now, and are shown nowhere."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.llm.errors import FailureKind, ProviderError
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.providers.anthropic.messages import read_message
from agentic_trading.llm.providers.hosted import HttpReply, read_up_to
from agentic_trading.llm.providers.keys import Keys, OneKey, SecretsFolder
from agentic_trading.llm.providers.openai.provider import model_response
from agentic_trading.llm.redaction import SHORTEST, Redaction

NAME = "anthropic_api_key"
SHARED = "sk-shared"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a shared key, and one for `acme`."""
    (tmp_path / NAME).write_text(f"{SHARED}\n", encoding="utf-8")
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / NAME).write_text("sk-acme", encoding="utf-8")
    return tmp_path


async def refused(keys: Keys, tenant: str = "acme") -> ProviderError:
    """Return the error that asking for a key ends in."""
    with pytest.raises(ProviderError) as caught:
        await keys.key_of(tenant)
    assert (caught.value.kind, caught.value.sent) == (FailureKind.AUTH_ERROR, False)
    return caught.value


async def test_one_key_serves_every_tenant() -> None:
    keys = OneKey(" sk-1 \n")

    assert [await keys.key_of(tenant) for tenant in ("a", "b")] == ["sk-1", "sk-1"]


@pytest.mark.parametrize("key", ["", "two words", "line\nfeed", "schlüssel"])
async def test_key_invalid_in_header_is_refused(key: str) -> None:
    error = await refused(OneKey(key))

    assert "visible ASCII" in error.message
    assert not key or key not in error.message


async def test_tenant_key_takes_precedence_over_shared(folder: Path) -> None:
    keys = SecretsFolder(folder, NAME)

    assert [await keys.key_of(tenant) for tenant in ("acme", "other")] == ["sk-acme", SHARED]


async def test_replaced_key_is_read_without_restart(folder: Path) -> None:
    keys = SecretsFolder(folder, NAME)
    await keys.key_of("acme")

    new = folder / "new"
    new.write_text("sk-next", encoding="utf-8")
    new.replace(folder / "acme" / NAME)

    assert await keys.key_of("acme") == "sk-next"


async def test_key_change_detected_despite_same_mtime(folder: Path) -> None:
    keys, path = SecretsFolder(folder, NAME), folder / "acme" / NAME
    before = path.stat()
    await keys.key_of("acme")

    path.write_text("sk-emca", encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert await keys.key_of("acme") == "sk-emca"


async def test_default_keys_used_without_file(tmp_path: Path) -> None:
    assert await SecretsFolder(tmp_path, NAME, OneKey("sk-default")).key_of("acme") == "sk-default"


async def test_missing_key_error_names_paths(tmp_path: Path) -> None:
    error = await refused(SecretsFolder(tmp_path, NAME))

    assert str(tmp_path / "acme" / NAME) in error.message
    assert str(tmp_path / NAME) in error.message


async def test_empty_key_file_is_an_error(folder: Path) -> None:
    (folder / "acme" / NAME).write_text("\n", encoding="utf-8")

    error = await refused(SecretsFolder(folder, NAME, OneKey("sk-default")))

    assert "empty" in error.message


async def test_binary_key_file_is_an_error(folder: Path) -> None:
    (folder / "acme" / NAME).write_bytes(b"\xff\xfe")

    error = await refused(SecretsFolder(folder, NAME, OneKey("sk-default")))

    assert "cannot be read" in error.message


async def test_key_path_directory_is_an_error(folder: Path) -> None:
    (folder / "acme" / NAME).unlink()
    (folder / "acme" / NAME).mkdir()

    error = await refused(SecretsFolder(folder, NAME, OneKey("sk-default")))

    assert "cannot be read" in error.message


@pytest.mark.parametrize("tenant", ["..", ".", "", "a/b", "../acme", "/etc", "a\0b", "a\\b", "-a", "x" * 129])
async def test_invalid_tenant_name_gets_no_key(folder: Path, tenant: str) -> None:
    error = await refused(SecretsFolder(folder, NAME), tenant)

    assert "letters, digits" in error.message


@given(tenant=st.text(max_size=20))
async def test_tenant_cannot_escape_secrets_folder(
    tmp_path_factory: pytest.TempPathFactory, tenant: str
) -> None:
    outside = tmp_path_factory.getbasetemp()
    (outside / NAME).write_text("sk-outside", encoding="utf-8")
    inside = outside / "secrets"
    inside.mkdir(exist_ok=True)

    await refused(SecretsFolder(inside, NAME), tenant)


async def test_key_sources_hide_keys_in_repr(folder: Path) -> None:
    keys = SecretsFolder(folder, NAME, OneKey("sk-default"))
    await keys.key_of("acme")

    assert "sk-" not in repr(keys)
    assert "sk-" not in repr(OneKey("sk-1"))


KEY = "sk-proj-0123456789abcdefghijklmnop"
COMPLETION: dict[str, Any] = {
    "choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
}
MESSAGE: dict[str, Any] = {
    "content": [{"type": "text", "text": "{}"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 5},
}
TOOL_USE = [{"type": "tool_use", "id": "t-1", "name": "answer", "input": {}}]


def _completion(text: str) -> Iterator[dict[str, Any]]:
    (choice,), usage = COMPLETION["choices"], COMPLETION["usage"]
    yield {**COMPLETION, "choices": [{**choice, "finish_reason": [text]}]}
    yield {**COMPLETION, "service_tier": [text]}
    yield {**COMPLETION, "usage": {**usage, "prompt_tokens": text}}
    yield {**COMPLETION, "usage": {**usage, "cost": text, "is_byok": False}}
    yield {**COMPLETION, "choices": [{**choice, "message": {"content": [[text]]}}]}


def _message(text: str) -> Iterator[dict[str, Any]]:
    yield {**MESSAGE, "stop_reason": [text]}
    yield {**MESSAGE, "content": TOOL_USE, "stop_reason": [text]}
    yield {**MESSAGE, "usage": {**MESSAGE["usage"], "cost": text, "is_byok": False}}
    yield {**MESSAGE, "usage": {**MESSAGE["usage"], "output_tokens": text}}


async def _kept(read: Callable[[], Awaitable[ModelResponse]]) -> str:
    """Return all of an answer, or of the error in its place, that is left after redaction."""
    try:
        return repr(await Redaction(KEY).guard(read()))
    except ProviderError as e:
        return repr({**vars(e), "args": e.args})


@pytest.mark.parametrize("before", range(60))
async def test_truncated_answer_keeps_no_partial_key(before: int) -> None:
    text = f"{'x' * before}{KEY}{'y' * 60}"

    async def read(reader: Callable[[HttpReply], ModelResponse], page: dict[str, Any]) -> ModelResponse:
        return reader(HttpReply(json.dumps(page).encode(), "r-1"))

    async def unpack() -> ModelResponse:
        body = await read_up_to(_pieces(), text, 100, is_answer=True)
        raise AssertionError(body)

    kept = [await _kept(partial(read, model_response, page)) for page in _completion(text)]
    kept += [await _kept(partial(read, read_message, page)) for page in _message(text)]
    kept.append(await _kept(unpack))

    assert [one for one in kept if KEY[:SHORTEST] in one] == []


async def _pieces() -> AsyncIterator[bytes]:
    yield b"{}"

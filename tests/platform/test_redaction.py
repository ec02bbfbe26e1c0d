"""A server that echoes its key puts it nowhere: not on record, not on the bus, not into the program's own log."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import structlog

from agentic_trading.audit.verify import verify_log
from agentic_trading.bus.brokers.memory import MemoryBroker
from agentic_trading.bus.message import Message
from agentic_trading.bus.topic import ENVELOPES, Topic
from agentic_trading.cli.settings import configure_logging
from agentic_trading.llm import EnvelopeBuilder, Event, LLMEnvelope, LLMInteraction, LLMProvider, LLMResult
from agentic_trading.llm.errors import RecordError
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.llm.provider import Provider
from agentic_trading.llm.providers.anthropic.provider import AnthropicProvider
from agentic_trading.llm.providers.keys import OneKey
from agentic_trading.llm.providers.offline import RecordedAnswers, ScriptedProvider
from agentic_trading.llm.providers.openai.provider import OpenAIProvider
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.stores.jsonl.store import JsonlRecords
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import Platform, PlatformConfig, Ports, ProviderConfig
from agentic_trading.platform.settings import load_config
from agentic_trading.worker.recorder import Recorder
from tests.logging_kept import logging_kept
from tests.platform.calls import ROW

KEY = "sk-echo/Zq7+31xk-Wm"
LIMIT = 4096
SCHEMA = {"$id": "n.v1", "type": "object", "required": ["note"], "properties": {"note": {"type": "string"}}}
SPELLINGS = [KEY, KEY.replace("/", r"\/"), "sk-echo%2FZq7%2B31xk-Wm", b64encode(KEY.encode()).decode()[:-4]]


class Page(NamedTuple):
    """What the server answers: a text, and where it says so."""

    text: str = '{"note": "buy"}'
    stop: str = "stop"
    status: str = "200 OK"
    head: str = ""
    body: str = ""
    served: str = "quant-7b"


def escaped(key: str) -> str:
    return "".join(f"\\u{ord(c):04x}" for c in key)


ECHOES: dict[str, Callable[[str], Page]] = {
    "text": lambda key: Page(json.dumps({"note": f"you sent {key}"})),
    "text_escaped": lambda key: Page(f'{{"note": "{escaped(key)}"}}'),
    "text_basic": lambda key: Page(json.dumps({"note": b64encode(f"me:{key}".encode()).decode()})),
    "name": lambda key: Page(json.dumps({"note": "buy", key: 1.50})),
    "no_json": lambda key: Page(f"I was sent {key}"),
    "error": lambda key: Page(status="401 Unauthorized", body=f'{{"error": {{"message": "bad key {key}"}}}}'),
    "error_page": lambda key: Page(status="500 Oh", body=f"<html>{'x' * 470}{key}{key}</html>"),
    "head": lambda key: Page(head=f"x-request-id: {key}\r\nrequest-id: {key}\r\n"),
    "refusal": lambda key: Page(f"I refuse {key}", stop="refusal"),
    "cut_by_the_cap": lambda key: Page(f'{{"note": "you sent {key[:-3]}', stop="length"),
    "cut_by_the_limit": lambda key: Page("y" * (LIMIT - 700) + f" {key}" * 60),
    "model": lambda key: Page(served=key),
    "body": lambda key: Page(body=f"no JSON {key}"),
}


def body_of(adapter: str, page: Page) -> str:
    """Return a page as the body of an adapter's API."""
    if page.body:
        return page.body
    if adapter == "openai":
        says = {"refusal": page.text} if page.stop == "refusal" else {"content": page.text}
        choice = {"index": 0, "finish_reason": page.stop.replace("refusal", "stop")}
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        whole: dict[str, Any] = {"id": page.served, "object": "chat.completion", "created": 1, "usage": usage}
        choices = [{**choice, "message": {"role": "assistant", **says}}]
        return json.dumps({**whole, "model": page.served, "choices": choices})
    stop = {"stop": "end_turn", "length": "max_tokens"}.get(page.stop, page.stop)
    usage = {"input_tokens": 3, "output_tokens": 2}
    content = [{"type": "text", "text": page.text}]
    whole = {"id": page.served, "type": "message", "role": "assistant", "content": content, "usage": usage}
    return json.dumps({**whole, "model": page.served, "stop_reason": stop})


@asynccontextmanager
async def echoing(adapter: str, echo: Callable[[str], Page]) -> AsyncGenerator[str]:
    """Serve what `echo` makes of the key that a request was sent with."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert KEY in head
        page = echo(KEY)
        body = body_of(adapter, page).encode()
        size = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"HTTP/1.1 {page.status}\r\n{size}{page.head}\r\n".encode() + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def envelope(**context: Any) -> LLMEnvelope:
    builder = EnvelopeBuilder().for_general().with_instructions("Advise.").with_output_schema(SCHEMA)
    builder.with_retry_policy(RetryPolicy(max_retries=0)).with_context(context)
    return builder.with_provider(LLMProvider("stub"), "quant-7b").build()


def with_keys(folder: Path) -> Path:
    folder.mkdir()
    (folder / "stub_api_key").write_text(KEY)
    return folder


def given(adapter: str, address: str) -> Provider:
    made = OpenAIProvider if adapter == "openai" else AnthropicProvider
    return made(OneKey(KEY), base_url=address, max_answer_bytes=LIMIT)


def configured(folder: Path, adapter: str, address: str, **values: Any) -> PlatformConfig:
    row = ProviderConfig(adapter=adapter, base_url=address, models=(ROW,), max_answer_bytes=LIMIT)
    secrets = with_keys(folder / "keys")
    return PlatformConfig(folder=folder / "log", providers={"stub": row}, secrets_folder=secrets, **values)


class Seeing(MemoryBroker):
    """A bus that keeps every byte that was published but for the envelopes."""

    seen = b""

    async def publish(self, topic: Topic[Any], message: Message) -> None:
        await super().publish(topic, message)
        if topic not in ENVELOPES.values():
            self.seen += message.value + repr(message.headers).encode()


async def asked(config: PlatformConfig, *envelopes: LLMEnvelope, **ports: Any) -> bytes:
    """Have the calls made, and return every byte that was published but for the envelopes."""
    broker = Seeing()
    async with Platform(config, Ports(broker=broker, **ports)) as platform:
        for each in envelopes:
            await platform.ask(each)
    return broker.seen


async def results_in(folder: Path) -> list[LLMInteraction]:
    log = JsonlRecords(folder / "interactions.jsonl")
    found = [entry.record async for entry in log.scan() if isinstance(entry.record, LLMInteraction)]
    await log.aclose()
    return found


def read_facts(result: LLMResult) -> tuple[Any, ...]:
    return (
        result.raw_output,
        result.parsed_output,
        result.failure,
        result.reading,
        result.stop_reason,
        result.model,
    )


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with logging_kept():
        yield


@pytest.mark.parametrize("adapter", ["openai", "anthropic"])
@pytest.mark.parametrize("place", ECHOES)
@pytest.mark.parametrize("made_by", ["platform", "caller"])
async def test_echoed_key_is_kept_nowhere(
    adapter: str, place: str, made_by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with echoing(adapter, ECHOES[place]) as address:
        config = configured(tmp_path, adapter, address)
        configure_logging("debug", "json")
        async with aclosing(given(adapter, address)) as provider:
            ports = {"providers": {"stub": provider}} if made_by == "caller" else {}
            published = await asked(config, envelope(), **ports)

    kept = b"".join(path.read_bytes() for path in (tmp_path / "log").rglob("*") if path.is_file())
    logged = "".join(capsys.readouterr())
    for spelled in SPELLINGS:
        assert spelled.encode() not in kept
        assert spelled not in logged
        assert spelled.encode() not in published
    recorded = await results_in(tmp_path / "log")
    assert KEY[:8] not in recorded[-1].result.raw_output
    assert b"interaction_id" in published
    assert place == "body" or "***" in str(recorded[-1].result)
    assert (await reported(tmp_path / "log")).is_whole

    again = PlatformConfig(folder=tmp_path / "again", providers={"stub": config.providers["stub"]})
    await asked(again, envelope(), providers={"stub": silent()}, recorded=RecordedAnswers(recorded))

    replayed = await results_in(tmp_path / "again")
    assert [read_facts(each.result) for each in replayed] == [read_facts(each.result) for each in recorded]


def silent() -> ScriptedProvider:
    return ScriptedProvider([])


async def reported(folder: Path) -> Any:
    log = JsonlRecords(folder / "interactions.jsonl")
    try:
        return await verify_log(log)
    finally:
        await log.aclose()


async def test_secret_in_request_or_event_is_redacted(tmp_path: Path) -> None:
    config = configured(tmp_path, "openai", "http://127.0.0.1:9")
    provider = ScriptedProvider(lambda _: '{"note": "buy"}')
    config.redaction.add(KEY)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    noted = Event(kind="note.taken", id="n-1", trace_id="t", tenant_id="default", time=at, body={"a": [KEY]})
    question = envelope(key=KEY, size=1.50)

    async with Platform(config, Ports(providers={"stub": provider})) as platform:
        answer = await platform.ask(question)
        await platform.record(noted)

    assert isinstance(answer, LLMInteraction)
    assert answer.envelope.context == {"key": "***", "size": 1.5}
    assert answer.envelope.request_hash == question.request_hash
    assert KEY.encode() not in (tmp_path / "log" / "interactions.jsonl").read_bytes()
    assert (await reported(tmp_path / "log")).is_whole


def test_url_passwords_and_environment_keys_are_redacted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_API_KEY", KEY)
    row = {"stub": {"adapter": "openai", "base_url": "http://127.0.0.1:9"}}
    config = load_config(providers=row, ledger={"url": "redis://me:pass%2Fword-9@127.0.0.1:6379"})
    configure_logging("info", "human", config.model_copy(update={"mode": "paper"}).redaction)

    structlog.get_logger().warning("failed", error=f"{KEY} and pass%2Fword-9 and pass/word-9")

    assert "*** and *** and ***" in capsys.readouterr().err


async def test_principal_keys_are_redacted(tmp_path: Path) -> None:
    (tmp_path / "principals").mkdir()
    (tmp_path / "principals" / "desk").write_text("0123456789abcdef" * 2)
    config = PlatformConfig(principals_folder=tmp_path / "principals", sign_as="desk")

    async with Platform(config):
        assert config.redaction.text("0123456789abcdef" * 2) == "***"


async def test_unredactable_record_is_refused() -> None:
    recorder = Recorder(MemoryInteractionStore(), redaction=Redaction("quant-7b/x", "stub-llm-7"))
    builder = EnvelopeBuilder().for_general().with_instructions("Advise.")
    question = builder.with_provider(LLMProvider("stub-llm-7"), "m-1").build()
    held = LLMInteraction(envelope=question, result=LLMResult(envelope_id=question.envelope_id))

    with pytest.raises(RecordError, match="contains a secret at a place that cannot be redacted"):
        await recorder.keep(held, final=True)

"""Keys with `stream = "through"`: events go to the client as the provider sends them, and the answer to the log."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.result import LLMResult
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.llm.taps import Tap
from agentic_trading.platform.config import BusConfig, PlatformConfig
from agentic_trading.platform.platform import Platform, Ports
from agentic_trading.server import server
from agentic_trading.server.recording import ServedRecording, VolatileTexts
from tests.cli.conftest import Command
from tests.server.conftest import Served, Serving
from tests.server.test_events import pages
from tests.server.test_joins import joined
from tests.server.test_sdks import CLAUDE_TOOL, FLAT_TOOL, TOOL, ask, claude_sdk, sdk
from tests.stubs.running import page_of, serving
from tests.stubs.vendor_api import ARGUMENTS, SECRET, TEXT

THROUGH: Mapping[str, Any] = {"stream": "through"}
PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]


@pytest.fixture(scope="module")
def vendor() -> Iterator[str]:
    """Return the address of a stub of this module alone, because its gates stay open."""
    with serving("tests.stubs.vendor_api") as address:
        yield address


def body(path: str, words: str, **more: Any) -> dict[str, Any]:
    """Return a request for a stream."""
    match path:
        case "/v1/chat/completions":
            own: dict[str, Any] = {"model": "gpt", "messages": ask(words)}
        case "/v1/responses":
            own = {"model": "gpt", "input": words}
        case _:
            own = {"model": "claude", "messages": ask(words), "max_tokens": 64}
    return {**own, "stream": True, **more}


async def release(served: Served, gate: str) -> None:
    """Let the stub send the second half of an answer."""
    await asyncio.to_thread(page_of, served.vendor, f"/release/{gate}")


async def results(served: Served) -> list[LLMResult]:
    """Return the results on record, oldest first."""
    return [one.record.result async for one in served.store.scan() if isinstance(one.record, LLMInteraction)]


async def events_in(answer: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Yield the events of an answer as they arrive."""
    text = ""
    async for piece in answer.content.iter_any():
        text += piece.decode()
        *whole, text = text.split("\n\n")
        for event in whole:
            yield event


@pytest.mark.parametrize("path", PATHS)
async def test_first_event_arrives_before_the_last_one_was_generated(serve: Serving, path: str) -> None:
    gate = f"gate_first_{path.rpartition('/')[2]}"
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", path, json=body(path, f"@{gate}")) as answer:
            events = events_in(answer)
            async with asyncio.timeout(15):
                first = await anext(events)
            before = await results(served)
            await release(served, gate)
            rest = [event async for event in events]
        (result,) = await results(served)
        asked = (await served.asked())[-1]["body"]

    assert before == []
    assert '"error": {' not in first
    assert any(word in rest[-1] for word in ("[DONE]", "response.completed", "message_stop"))
    assert len(rest) > 8
    assert result.success
    assert result.usage.output_tokens == 20
    assert asked["stream"] is True


@pytest.mark.parametrize("path", PATHS)
async def test_answer_is_on_record_before_its_last_event_is_read(serve: Serving, path: str) -> None:
    async with (
        serve(rights=THROUGH) as served,
        served.request("POST", path, json=body(path, "@think")) as answer,
    ):
        raw = await answer.read()
        (result,) = await results(served)
        folded = json.loads(result.raw_output)

    found = pages(raw)
    if path == "/v1/responses":
        assert folded == found[-1]["response"]
    if path == "/v1/messages":
        assert [block["type"] for block in folded["content"]] == ["thinking", "text"]
        assert folded["usage"]["output_tokens"] == 20
    if path == "/v1/chat/completions":
        assert raw.endswith(b"data: [DONE]\n\n")
        text = "".join(one["choices"][0]["delta"].get("content") or "" for one in found)
        assert folded["choices"][0]["message"]["content"] == text
        # The client has not asked for the event with the usage.
        assert all(one["choices"] for one in found)
    assert result.cost_nusd == 2000 * result.usage.input_tokens + 10_000 * 20


async def test_official_sdks_stream_tools_refusals_and_several_answers(serve: Serving) -> None:
    async with serve(rights=THROUGH) as served, sdk(served) as client, claude_sdk(served) as claude:
        async with client.chat.completions.stream(
            model="gpt", messages=ask("@tool"), tools=[TOOL], stream_options={"include_usage": True}
        ) as stream:
            chat = await stream.get_final_completion()
        async with client.chat.completions.stream(model="gpt", messages=ask("Judge NVDA."), n=2) as stream:
            several = await stream.get_final_completion()
        async with client.chat.completions.stream(model="gpt", messages=ask("@refuse")) as stream:
            refused = await stream.get_final_completion()
        async with client.responses.stream(model="gpt", input="@tool", tools=[FLAT_TOOL]) as responses:
            response = await responses.get_final_response()
        async with claude.messages.stream(
            model="claude", messages=ask("@tool"), tools=[CLAUDE_TOOL], max_tokens=64
        ) as messages:
            message = await messages.get_final_message()
        made = await results(served)

    call: Any = next(iter(chat.choices[0].message.tool_calls or []))
    assert call.function.arguments == ARGUMENTS
    assert chat.usage is not None
    assert chat.usage.completion_tokens == 20
    assert [(choice.message.content or "").startswith(TEXT) for choice in several.choices] == [True, True]
    assert refused.choices[0].message.refusal == "I cannot help with that."
    output: Any = response.output[0]
    assert output.arguments == ARGUMENTS
    block: Any = message.content[-1]
    assert block.input == json.loads(ARGUMENTS)
    assert message.usage.output_tokens == 20
    assert [one.success for one in made] == [True] * 5
    assert json.loads(made[1].raw_output)["choices"][1]["index"] == 1
    assert made[1].usage.output_tokens == 40
    assert json.loads(made[2].raw_output)["choices"][0]["message"]["refusal"] == "I cannot help with that."


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("word", ["broken", "failing"])
async def test_stream_that_breaks_is_in_doubt_and_is_not_tried_again(
    serve: Serving, path: str, word: str
) -> None:
    async with serve(rights=THROUGH) as served:
        before = len(await served.asked())
        async with served.request("POST", path, json=body(path, f"@{word}")) as answer:
            raw = await answer.read()
        made = await results(served)
        requests = len(await served.asked()) - before

    last = pages(raw)[-1]
    assert (answer.status, requests) == (200, 1)
    assert last["error"]["message"]
    assert b"told by the stub" not in raw.split(b"\n\n")[0]
    assert b"[DONE]" not in raw
    (result,) = made
    assert (result.success, result.in_doubt, result.next_step) == (False, True, "final")
    assert result.cost_nusd == result.reserved_nusd > 0


async def test_stream_that_breaks_before_its_first_event_is_a_plain_error(serve: Serving) -> None:
    path = PATHS[0]
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", path, json=body(path, "@brokenfirst")) as answer:
            page = await answer.json()
        made = await results(served)
        async with served.request("POST", path, json=body(path, "@400")) as refused:
            second = await refused.json()

    assert answer.status == 502
    assert page["error"]["message"]
    assert all(one.in_doubt for one in made)
    assert len(made) > 1, "it may be tried again, because its client has read no event"
    assert (refused.status, "told by the stub" in second["error"]["message"]) == (400, True)


@pytest.mark.parametrize("path", PATHS)
async def test_packed_stream_is_unpacked(serve: Serving, path: str) -> None:
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", path, json=body(path, "@gzip")) as answer:
            raw = await answer.read()
        (result,) = await results(served)
        asked = (await served.asked())[-1]["headers"]

    assert "content-encoding" not in answer.headers
    assert len(pages(raw)) > 5
    assert result.success
    assert asked["accept-encoding"] == "identity"


@pytest.mark.parametrize("path", PATHS)
async def test_secret_that_is_split_over_events_does_not_pass(serve: Serving, path: str) -> None:
    gate = f"gate_secret_{path.rpartition('/')[2]}"
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", path, json=body(path, f"@secret @{gate}")) as answer:
            begun = await answer.content.readany()
            await release(served, gate)
            raw = begun + await answer.read()
        (result,) = await results(served)

    # The stub sends five characters an event, so that no event has the whole secret.
    text = "".join(_texts(raw))
    assert "The key is" in text
    assert SECRET[:8] not in text
    assert pages(raw)[-1]["error"]["message"].endswith("the answer has a secret of this platform")
    assert result.success
    assert SECRET not in result.raw_output


def _texts(raw: bytes) -> Iterator[str]:
    for page in pages(raw):
        delta = page.get("delta")
        yield delta if isinstance(delta, str) else (delta or {}).get("text", "")
        for choice in page.get("choices", ()):
            yield choice["delta"].get("content") or ""


@pytest.mark.parametrize("path", PATHS)
async def test_stream_without_usage_is_charged_as_reserved(serve: Serving, path: str) -> None:
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", path, json=body(path, "@nousage")) as answer:
            raw = await answer.read()
        (result,) = await results(served)

    assert "error" not in pages(raw)[-1]
    assert result.success
    assert result.usage.unmetered
    assert result.cost_nusd == result.reserved_nusd > 0


@pytest.mark.parametrize("path", PATHS)
async def test_client_that_leaves_does_not_end_its_call(serve: Serving, path: str) -> None:
    gate = f"gate_leave_{path.rpartition('/')[2]}"
    key = {"idempotency-key": "once"}
    asked = body(path, f"@{gate}")
    async with serve(rights=THROUGH) as served:
        before = len(await served.asked())
        async with served.request("POST", path, json=asked, headers=key) as answer:
            await anext(events_in(answer))
        await release(served, gate)
        async with served.request("POST", path, json=asked, headers=key) as again:
            raw = await again.read()
        (result,) = await results(served)
        requests = len(await served.asked()) - before

    assert requests == 1
    assert result.success
    assert "error" not in pages(raw)[-1]


@pytest.mark.parametrize("path", PATHS)
async def test_joined_request_gets_the_events_of_the_whole(serve: Serving, path: str) -> None:
    gate = f"gate_join_{path.rpartition('/')[2]}"
    key = {"idempotency-key": "twice"}
    asked = body(path, f"@{gate}")
    async with serve(rights=THROUGH) as served:
        before = len(await served.asked())
        async with served.request("POST", path, json=asked, headers=key) as answer:
            begun = await answer.content.readany()

            async def second() -> bytes:
                async with served.request("POST", path, json=asked, headers=key) as again:
                    return await again.read()

            async with asyncio.TaskGroup() as group:
                following = group.create_task(second())
                await joined(served, 1)
                await release(served, gate)
                first = begun + await answer.read()
            raw = following.result()
        requests = len(await served.asked()) - before

    assert requests == 1
    assert len(pages(raw)) < len(pages(first))
    assert "".join(_texts(raw)) == "".join(_texts(first)) != ""


async def test_client_that_reads_too_slowly_gets_an_error_and_its_call_is_finished(
    serve: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Tap):
        """A tap whose first events take as long to write as the call lasts."""

        async def wait(self, call: "asyncio.Task[Any]", timeout_s: float) -> bool:
            if self.is_read:
                await asyncio.wait([call])
            return await super().wait(call, timeout_s)

    monkeypatch.setattr(server, "Tap", partial(Slow, most_bytes=1_000_000))
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", PATHS[0], json=body(PATHS[0], "@long")) as answer:
            raw = await answer.read()
        (result,) = await results(served)

    assert result.success
    assert json.loads(result.raw_output)["choices"][0]["message"]["content"] == TEXT * 2000
    assert "The client reads too slowly" in pages(raw)[-1]["error"]["message"]
    assert len(raw) < 1_000_000


@pytest.mark.parametrize("path", PATHS)
async def test_server_that_does_not_stream_is_answered_whole(serve: Serving, path: str) -> None:
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", path, json=body(path, "@nostream")) as answer:
            raw = await answer.read()
        (result,) = await results(served)

    assert "x-agentic-cost-nusd" in answer.headers
    assert "error" not in pages(raw)[-1]
    assert result.success


@pytest.mark.parametrize("path", PATHS)
async def test_key_without_the_option_asks_for_the_answer_as_a_whole(serve: Serving, path: str) -> None:
    async with serve() as served:
        async with served.request("POST", path, json=body(path, "Judge NVDA.")) as answer:
            await answer.read()
        async with served.request("POST", path, json={**body(path, "Judge AMD."), "stream": False}) as whole:
            await whole.read()
        asked = (await served.asked())[-2:]

    assert all("stream" not in one["body"] for one in asked)


def test_key_that_asks_again_cannot_pass_streams_through(place: Path, command: Command) -> None:
    words = ["api-keys", "create", "agent", "--tenant", "acme", "--agent", "a-1"]
    wrong = command(*words, "--stream", "through", "--json-schema", "reask")
    unknown = command(*words, "--stream", "partly")
    made = command(*words, "--stream", "through")

    assert (wrong.code, unknown.code) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    assert "--stream" in wrong.err
    assert "whole" in wrong.err
    assert "whole" in unknown.err
    assert made.code == ExitCode.DONE
    assert 'stream = "through"' in (place / "api-keys.toml").read_text()


@pytest.mark.parametrize("path", PATHS)
async def test_replay_of_a_streamed_call_is_the_same_message(
    serve: Serving, tmp_path: Path, path: str
) -> None:
    asked = body(path, "Judge the replay.")
    async with serve(rights=THROUGH) as served:
        async with served.request("POST", path, json=asked) as answer:
            first = await answer.read()
        answers = ServedRecording(VolatileTexts(()), Redaction())
        async for entry in served.store.scan():
            if isinstance(entry.record, LLMInteraction):
                answers.add(entry.record)
    ports = Ports(providers=Providers.every(answers), recorded=answers, store=MemoryInteractionStore())
    async with (
        serve(rights=THROUGH, ports=ports, name="again") as served,
        served.request("POST", path, json=asked) as answer,
    ):
        second = await answer.read()

    assert answer.headers["x-agentic-served-from"] == "recorded"
    assert len(pages(second)) < len(pages(first))
    assert "".join(_texts(second)) == "".join(_texts(first)) != ""


async def test_call_on_a_shared_bus_has_no_tap(tmp_path: Path) -> None:
    config = PlatformConfig(bus=BusConfig(url="redis://127.0.0.1:6379"))

    assert Platform(config).taps is None
    assert Platform(PlatformConfig()).taps == {}

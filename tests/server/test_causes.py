"""Causes of calls: ids of answers, quoted texts, the graph of a decision, and the limits of what is remembered."""

import asyncio
import json
import re
from io import StringIO
from typing import Any

import pytest
from rich.console import Console, RenderableType

from agentic_trading.audit.trace import why
from agentic_trading.cli.chains import path_of, values_of_path
from agentic_trading.client.outcome import StructuredOutcome, outcome_of
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.provider import Providers
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform import port_adapters
from agentic_trading.platform.platform import Ports
from agentic_trading.server.calls import TABLES
from agentic_trading.server.causes import ANSWERS_KEPT, MOST_IDS, NO_CAUSE, Causes, answer_parts
from agentic_trading.server.fields import ClientRequest, read_request
from tests import build
from tests.server.conftest import Served, Serving
from tests.server.test_sdks import CLAUDE_TOOL, FLAT_TOOL, TOOL, ask, claude_sdk, sdk

LONG = (
    "The report on NVDA: margins grow, the order book is full, and the valuation is at its mean of ten years."
)


READ = AttemptTrace(parser="p", transport="verbatim", verdict=Stage.PASSED_ON)


def printed(drawn: RenderableType) -> str:
    console = Console(width=200, file=StringIO(), record=True)
    console.print(drawn)
    return console.export_text()


async def calls_of(served: Served) -> list[LLMInteraction]:
    return [entry.record async for entry in served.store.scan() if isinstance(entry.record, LLMInteraction)]


async def quotes_of(served: Served) -> list[Event]:
    records = [entry.record async for entry in served.store.scan()]
    return [one for one in records if isinstance(one, Event) and one.kind == "request.quoted"]


async def asked(
    served: Served, words: str, *, path: str = "/v1/chat/completions", **more: Any
) -> tuple[str, str]:
    """Ask, and return the answer's text and the id of its interaction."""
    body = {"model": "gpt", "messages": ask(words)}
    async with served.request("POST", path, data=json.dumps(body), **more) as answer:
        page = await answer.json()
        assert answer.status == 200, page
        return page["choices"][0]["message"]["content"], answer.headers["x-agentic-interaction-id"]


async def test_results_of_tools_have_the_call_of_the_tool_as_their_cause(serve: Serving) -> None:
    async with serve() as served, sdk(served) as gpt, claude_sdk(served) as claude:
        chat: Any = await gpt.chat.completions.create(model="gpt", messages=ask("@tool"), tools=[TOOL])
        said = chat.choices[0].message
        result: Any = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "2"}
        await gpt.chat.completions.create(model="gpt", messages=[*ask("go"), said, result])
        response: Any = await gpt.responses.create(model="gpt", input="@tool", tools=[FLAT_TOOL])
        output: Any = {"type": "function_call_output", "call_id": response.output[0].call_id, "output": "2"}
        await gpt.responses.create(model="gpt", input=[output])
        message: Any = await claude.messages.create(
            model="claude", max_tokens=99, messages=ask("@tool"), tools=[CLAUDE_TOOL]
        )
        used: Any = {"type": "tool_result", "tool_use_id": message.content[-1].id, "content": "2"}
        await claude.messages.create(
            model="claude", max_tokens=99, messages=[{"role": "user", "content": [used]}]
        )
        found = await calls_of(served)

    firsts, seconds = found[::2], found[1::2]
    assert [one.envelope.causation_id for one in firsts] == [""] * 3
    assert [one.envelope.causation_id for one in seconds] == [one.interaction_id for one in firsts]
    assert [one.envelope.trace_id for one in seconds] == [one.envelope.trace_id for one in firsts]


async def test_quoted_texts_give_the_whole_graph_of_a_decision(serve: Serving) -> None:
    """Two analysts, two researchers, a trader and a manager, as TradingAgents asks them."""
    async with serve() as served:
        (news, news_id), (market, market_id) = [await asked(served, f"@report {name}", path="/t/d1/v1/chat/completions") for name in ("news", "market")]  # fmt: skip
        reports = f"News:\n{news}\n\nMarket:\n{market}"
        bull, bull_id = await asked(served, f"{reports} bull @report", path="/t/d1/v1/chat/completions")
        bear, bear_id = await asked(
            served, f"{reports}\n{bull} bear @report", path="/t/d1/v1/chat/completions"
        )
        plan, plan_id = await asked(
            served, f"{bull}\n{bear} trader @fields", path="/t/d1/v1/chat/completions"
        )
        field = json.loads(plan.strip("`").removeprefix("json"))["report"]
        _, manager_id = await asked(served, f"Plan: {field} {news} manager", path="/t/d1/v1/chat/completions")
        found = {one.interaction_id: one.envelope for one in await calls_of(served)}
        quotes = {one.causation_id: one.body["interactions"] for one in await quotes_of(served)}
        assert isinstance(served.store, MemoryInteractionStore)
        answer = await why(served.store.records, manager_id, tenant="acme")

    causes = {name: envelope.causation_id for name, envelope in found.items()}
    assert causes == {
        news_id: "", market_id: "", bull_id: market_id, bear_id: bull_id, plan_id: bear_id, manager_id: plan_id,
    }  # fmt: skip
    assert quotes == {
        found[bull_id].envelope_id: [news_id, market_id],
        found[bear_id].envelope_id: [news_id, market_id, bull_id],
        found[manager_id].envelope_id: [news_id, plan_id],
    }
    assert [node.id for node in answer.path] == [
        found[one].envelope_id for one in (market_id, bull_id, bear_id, plan_id, manager_id)
    ]
    assert [node.id for node in answer.quoted] == [found[news_id].envelope_id]
    shown = await asyncio.to_thread(lambda: printed(path_of(answer)))
    assert "Also quoted" in shown
    assert found[news_id].envelope_id in shown.partition("Also quoted")[2]
    assert [node["id"] for node in values_of_path(answer)["quoted"]] == [found[news_id].envelope_id]


async def test_unreadable_body_of_a_quotation_is_not_shown() -> None:
    store = MemoryInteractionStore()
    await store.record(build.event(id="root-event", trace_id="t"))
    await store.record(
        build.event("request.quoted", trace_id="t", causation_id="root-event", body={"interactions": 7})
    )

    assert (await why(store.records, "root-event")).quoted == ()


async def test_call_without_a_trace_has_the_trace_of_its_cause(serve: Serving) -> None:
    async with serve() as served:
        report, first = await asked(served, "@report news")
        _, second = await asked(served, f"Judge: {report}")
        await asked(served, f"Judge: {report}", path="/t/other/v1/chat/completions")
        found = {one.interaction_id: one.envelope for one in await calls_of(served)}

    assert found[second].causation_id == first
    assert found[second].trace_id == found[first].trace_id
    assert [(one.trace_id, one.causation_id) for one in found.values()][2] == ("other", "")


async def test_replay_of_a_chain_of_causes_has_the_same_bytes(serve: Serving) -> None:
    async def chain(served: Served) -> list[str]:
        said = [(await asked(served, f"@report {name}"))[0] for name in ("news", "market")]
        return [*said, (await asked(served, " ".join(said)))[0]]

    answers = port_adapters.recording()
    async with serve() as served:
        live = await chain(served)
        for one in await calls_of(served):
            answers.add(one)
    store = MemoryInteractionStore()
    ports = Ports(store=store, providers=Providers.every(answers), recorded=answers)
    async with serve(ports=ports) as served:
        again = await chain(served)
        quotes = await quotes_of(served)

    assert (again, answers.misses, answers.unused) == (live, [], [])
    assert len(quotes) == 1


def request(text: str, **more: Any) -> ClientRequest:
    body = {"model": "gpt", "messages": ask(text), **more}
    return read_request(TABLES["chat_completions"], json.dumps(body).encode())


async def with_answer(causes: Causes, key: str, name: str, text: str, trace: str = "t") -> None:
    body = {"id": f"chatcmpl-{name}", "choices": [{"message": {"content": text}}]}
    raw = json.dumps(body)
    interaction = build.interaction(interaction_id=name, result=build.result(raw_output=raw, reading=READ))
    outcome = outcome_of([interaction])
    await causes.add((key, trace), interaction.envelope, outcome)


async def test_answers_of_another_key_or_trace_are_no_cause() -> None:
    causes = Causes()
    await with_answer(causes, "one", "i1", LONG)

    assert causes.find("one", "t", request(LONG)).id == "i1"
    assert causes.find("two", "t", request(LONG)) == NO_CAUSE
    assert causes.find("one", "u", request(LONG)) == NO_CAUSE
    assert causes.named("one", "chatcmpl-i1") == "i1"
    assert causes.named("two", "chatcmpl-i1") is None


async def test_text_with_the_beginning_of_an_answer_is_no_quotation() -> None:
    causes = Causes()
    await with_answer(causes, "one", "i1", LONG + " Sell.")

    assert causes.find("one", "t", request(LONG + " Buy.")) == NO_CAUSE


async def test_equal_answers_are_all_quoted() -> None:
    causes = Causes()
    for number in range(3):
        await with_answer(causes, "one", f"i{number}", LONG)

    assert causes.find("one", "t", request(LONG)).quoted == ("i0", "i1", "i2")


async def test_answer_can_be_named_in_the_metadata() -> None:
    causes = Causes()
    await with_answer(causes, "one", "i1", "short")

    assert causes.find("one", "t", request("x", metadata={"after": "chatcmpl-i1", "n": 1})).id == "i1"
    assert causes.find("one", "t", request("short")) == NO_CAUSE


async def test_old_answers_and_traces_are_forgotten() -> None:
    causes = Causes(most_traces=2, most_characters=3 * len(LONG))
    for number in range(ANSWERS_KEPT + 1):
        await with_answer(causes, "one", f"i{number}", "short")
    for trace in ("u", "v"):
        await with_answer(causes, "one", f"of-{trace}", LONG, trace)
    is_forgotten = causes.named("one", f"chatcmpl-i{ANSWERS_KEPT}") is None
    await with_answer(causes, "one", "big", LONG + LONG + ".", "v")

    assert is_forgotten
    assert causes.named("one", "chatcmpl-of-u") is None
    assert causes.find("one", "v", request(LONG)).id == "of-v"


async def test_oldest_answer_of_a_trace_is_forgotten_first() -> None:
    causes = Causes()
    for number in range(ANSWERS_KEPT + 1):
        await with_answer(causes, "one", f"i{number}", "short")

    assert causes.named("one", "chatcmpl-i0") is None
    assert causes.named("one", "chatcmpl-i1") == "i1"


@pytest.mark.parametrize("ensure_ascii", [False, True])
async def test_answer_inside_json_of_a_prompt_is_quoted(*, ensure_ascii: bool) -> None:
    causes, text = Causes(), f'The "report" ü 😀\n\tC:\\new/x. {LONG}'
    await with_answer(causes, "one", "i1", text)
    signals = json.dumps({"analyst": {"reasoning": text, "size": 2}}, ensure_ascii=ensure_ascii)

    assert causes.find("one", "t", request(f"Signals:\n{signals}\nDecide.")).id == "i1"
    assert causes.find("one", "t", request(signals.replace("new/x", "old/x"))) == NO_CAUSE
    assert causes.find("one", "t", request("\\ud83d \\u \\x" + LONG)) == NO_CAUSE


async def test_ids_of_an_answer_are_bounded() -> None:
    causes = Causes(most_characters=2_000)
    calls = [{"id": f"c{n}"} for n in range(3000)] + [{"id": "x" * 300}, {"id": ""}]
    answer = {"choices": [{"message": {"content": "short", "tool_calls": calls}}]}
    for name in ("i1", "i2", "i3"):
        body = json.dumps({"id": f"own-{name}", **answer})
        kept = build.interaction(interaction_id=name, result=build.result(raw_output=body, reading=READ))
        await causes.add(("one", name), kept.envelope, outcome_of([kept]))
    ids, _ = answer_parts(json.dumps({"id": "own", **answer}))

    assert len(ids) == MOST_IDS + 1
    assert not ids & {"", "x" * 300}
    assert [causes.named("one", f"own-{name}") for name in ("i1", "i2", "i3")] == [None, None, "i3"]
    assert causes.find("one", "i3", request("x", metadata={"after": ""})) == NO_CAUSE


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>",
        "[]",
        "{",
        "null",
        '{"choices": 7}',
        '{"id": 7, "choices": [{"id": null}]}',
        "[" * 100_000,
    ],
)
def test_answer_of_another_form_has_no_parts(body: str) -> None:
    assert answer_parts(body) == (frozenset(), ())


def test_fields_that_repeat_the_request_are_no_texts_of_an_answer() -> None:
    body = {
        "id": "resp_1",
        "instructions": LONG,
        "output": [{"id": "msg_1", "content": [{"text": LONG[1:]}]}],
    }

    ids, texts = answer_parts(json.dumps(body))

    assert ids == {"resp_1", "msg_1"}
    assert texts == (LONG[1:],)


def test_arguments_of_calls_and_json_in_text_count_text_by_text() -> None:
    arguments = json.dumps({"plan": LONG, "size": 2})
    fenced = f"Here it is:\n```json\n{json.dumps([{'why': LONG[2:]}])[1:-1]}\n```"
    message = {"content": fenced, "tool_calls": [{"id": "c1", "function": {"arguments": arguments}}]}

    _, texts = answer_parts(json.dumps({"choices": [{"message": message}]}))

    assert set(texts) == {fenced, arguments, LONG, LONG[2:]}
    assert not re.search("size", LONG)


async def test_failed_record_of_causes_does_not_lose_the_answer() -> None:
    interaction = build.interaction()
    outcome = outcome_of([interaction])

    async def work() -> StructuredOutcome:
        return outcome

    async def broken(event: Event) -> None:
        raise OSError(event.kind)

    causes = Causes()
    await with_answer(causes, "one", "i1", LONG)
    await with_answer(causes, "one", "i2", LONG[1:])
    cause = causes.find("one", "t", request(f"{LONG} {LONG[1:]}"))
    told = await causes.followed(work(), interaction.envelope, cause, ("one", "t"), broken)

    assert (cause.id, cause.quoted, told) == ("i2", ("i1", "i2"), outcome)

"""Orders and fills that agents record: their causes, traces that are not sound, other tenants and keys, and hostile bodies."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from agentic_trading.audit.trace import why
from agentic_trading.llm.event import Event
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.config import TenantConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.server.api_keys import ApiKey, new_api_key
from agentic_trading.server.causes import Causes
from agentic_trading.server.server import AgentKeys
from tests.server.conftest import ALIASES, CREATED, Served, Serving
from tests.server.test_causes import asked, calls_of
from tests.stubs.vendor_api import TEXT

RIGHTS = {"records_events": True}
CHAT = "/v1/chat/completions"


async def posted(
    served: Served, body: Any, *, secret: str | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """Post an event, and return status, reply or error, and headers."""
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    async with served.request("POST", "/v1/events", data=data, secret=secret, headers=headers) as answer:
        page = await answer.json()
        return answer.status, page.get("error", page), answer.headers


async def state(served: Served, trace_id: str, *, secret: str | None = None) -> tuple[int, dict[str, Any]]:
    async with served.request("GET", f"/v1/traces/{trace_id}", secret=secret) as answer:
        page = await answer.json()
        return answer.status, page.get("error", page)


async def events_of(served: Served) -> list[Event]:
    records = [entry.record async for entry in served.store.scan()]
    return [one for one in records if isinstance(one, Event) and one.kind.startswith(("venue.", "agent."))]


@dataclass
class Keys:
    """The keys of a server, and another one."""

    first: AgentKeys
    secret: str
    key: ApiKey

    def find(self, secret: str) -> ApiKey | None:
        return self.key if secret == self.secret else self.first.find(secret)


def other_key(served: Served, **rights: Any) -> str:
    """Add a key to a running server, and return its secret."""
    fields = {"tenant": "acme", "agent": "trader-1", "models": ALIASES, **RIGHTS, **rights}
    key, secret = new_api_key("other", CREATED, fields)
    first = served.server.keys
    served.server.keys = Keys(first, secret, key)
    return secret


async def test_fill_leads_to_its_order_and_its_calls(serve: Serving) -> None:
    async with serve(rights=RIGHTS) as served:
        report, first = await asked(served, "@report news")
        async with served.request(
            "POST", CHAT, data=json.dumps({"model": "gpt", "messages": [{"role": "user", "content": report}]})
        ) as answer:
            answer_id, second = (await answer.json())["id"], answer.headers["x-agentic-interaction-id"]
        order = await posted(
            served,
            {"kind": "venue.order", "caused_by": answer_id, "require_sound": True, "body": {"size": 3}},
        )
        fill = await posted(served, {"kind": "venue.fill", "caused_by": order[1]["id"]})
        by_call = await posted(served, {"kind": "agent.noted", "caused_by": first})
        calls = {one.interaction_id: one.envelope for one in await calls_of(served)}
        assert isinstance(served.store, MemoryInteractionStore)
        path = (await why(served.store.records, fill[1]["id"], tenant="acme")).path
        found = await state(served, order[1]["trace_id"])

    assert [order[0], fill[0], by_call[0]] == [201] * 3
    assert [node.id for node in path] == [
        calls[first].envelope_id, calls[second].envelope_id, order[1]["id"], fill[1]["id"],
    ]  # fmt: skip
    trace_id = calls[first].trace_id
    assert found == (
        200,
        {"id": trace_id, "calls": 2, "failed": 0, "cost_nusd": found[1]["cost_nusd"], "sound": True},
    )
    assert found[1]["cost_nusd"] > 0


async def test_event_of_a_trace_with_a_failed_call_is_409_if_it_must_be_sound(serve: Serving) -> None:
    async with serve(rights=RIGHTS) as served:
        path = f"/t/d1{CHAT}"
        _, good = await asked(served, "Judge.", path=path)
        refused = {"model": "gpt", "messages": [{"role": "user", "content": "@400"}]}
        async with served.request("POST", path, data=json.dumps(refused)) as answer:
            assert answer.status == 400
        body = {"kind": "venue.order", "caused_by": good}
        unsound = await posted(served, {**body, "require_sound": True})
        as_it_is = await posted(served, body)
        found = await state(served, "d1")
        kept = await events_of(served)

    assert (unsound[0], unsound[1]["code"]) == (409, "unsound_trace")
    assert "1 of 2 calls of the trace d1 have failed" in unsound[1]["message"]
    assert unsound[2]["x-should-retry"] == "false"
    assert as_it_is[0] == 201
    assert [one.id for one in kept] == [as_it_is[1]["id"]]
    assert (found[1]["calls"], found[1]["failed"], found[1]["sound"]) == (2, 1, False)


async def test_digits_of_numbers_are_kept(serve: Serving) -> None:
    async with serve(rights=RIGHTS) as served:
        _, call = await asked(served, "Judge.")
        body = '{"price": 1.10, "size": 7, "id": 12345678901234567890123456789, "wei": 1e400, "p": 0.1234567890123456789}'
        done = await posted(served, f'{{"kind": "venue.order", "caused_by": "{call}", "body": {body}}}')
        [event] = await events_of(served)

    assert done[0] == 201
    assert event.body == {
        "price": "1.10", "size": 7, "id": "12345678901234567890123456789", "wei": "1E+400",
        "p": "0.1234567890123456789", "recorded_by": "desk",
    }  # fmt: skip


async def test_key_without_the_right_cannot_record_events(serve: Serving) -> None:
    async with serve() as served:
        _, call = await asked(served, "Judge.")
        refused = await posted(served, {"kind": "venue.order", "caused_by": call})
        missing = await posted(served, {"kind": "venue.order", "caused_by": call}, secret="-".join("agt"))
        kept = await events_of(served)

    assert (refused[0], refused[1]["code"], missing[0], kept) == (403, "permission_denied", 401, [])
    assert "--records-events" in refused[1]["message"]


@pytest.mark.parametrize(
    "rights", [{"tenant": "rival"}, {"agent": "trader-2"}, {}], ids=["tenant", "agent", "key"]
)
async def test_records_of_others_are_unknown_as_causes(serve: Serving, rights: dict[str, Any]) -> None:
    tenants = {name: TenantConfig(budget_usd=Decimal(5)) for name in ("acme", "rival")}
    async with serve(rights=RIGHTS, tenants=tenants) as served:
        secret = other_key(served, **rights)
        body = json.dumps({"model": "gpt", "messages": [{"role": "user", "content": "Judge."}]})
        async with served.request("POST", f"/t/d1{CHAT}", data=body) as answer:
            answer_id, call = (await answer.json())["id"], answer.headers["x-agentic-interaction-id"]
        order = await posted(served, {"kind": "venue.order", "caused_by": call})
        refused = [
            await posted(served, {"kind": "venue.order", "caused_by": named}, secret=secret)
            for named in (call, answer_id, order[1]["id"], "no-such-id")
        ]
        seen = await state(served, "d1", secret=secret)
        unknown = await state(served, "d2", secret=secret)
        kept = await events_of(served)

    assert [(status, page["code"]) for status, page, _ in refused] == [(404, "cause_not_found")] * 4
    texts = {page["message"].replace(named, "ID") for (_, page, _), named in zip(refused, (call, answer_id, order[1]["id"], "no-such-id"), strict=True)}  # fmt: skip
    assert len(texts) == 1
    assert len(kept) == 1
    # A trace belongs to the tenant, so that all its keys see it.
    assert seen[0] == (404 if rights.get("tenant") else 200)
    assert (unknown[0], unknown[1]["code"]) == (404, "trace_not_found")
    if seen[0] == 404:
        assert seen[1]["message"].replace("d1", "d2") == unknown[1]["message"]


DEEP = '{"a":' * 70 + "1" + "}" * 70


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        (b"", "", "not JSON"),
        (b"[]", "", "not a JSON object"),
        (b"\xff", "", "not UTF-8"),
        (b'{"kind": "a", "kind": "b"}', "", "appears twice"),
        (b"[" * 200_000, "", "nested too deeply"),
        (b'{"kind": "venue.order", "caused_by": "x", "body": {"a": NaN}}', "", "NaN"),
        (b'{"kind": "venue.order", "caused_by": "x", "body": {"a": "\\ud800"}}', "", "surrogate"),
        ({"kind": "venue.order", "caused_by": "x", "time": 1}, "time", "not a field"),
        ({"kind": "budget.exhausted", "caused_by": "x"}, "kind", "agent.NAME or venue.NAME"),
        ({"kind": "run.ended", "caused_by": "x"}, "kind", "agent.NAME or venue.NAME"),
        ({"kind": "request.quoted", "caused_by": "x"}, "kind", "agent.NAME or venue.NAME"),
        ({"kind": "venue.order\n", "caused_by": "x"}, "kind", "agent.NAME or venue.NAME"),
        ({"kind": 7, "caused_by": "x"}, "kind", "kind is 7"),
        ({"kind": "venue.order"}, "caused_by", "caused_by is None"),
        ({"kind": "venue.order", "caused_by": "x" * 257}, "caused_by", "Allowed: the id"),
        ({"kind": "venue.order", "caused_by": "x", "require_sound": 1}, "require_sound", "true or false"),
        ({"kind": "venue.order", "caused_by": "x", "body": []}, "body", "an object"),
        ({"kind": "venue.order", "caused_by": "x", "body": {"recorded_by": "y"}}, "body", "the server sets"),
        (f'{{"kind": "venue.order", "caused_by": "x", "body": {DEEP}}}', "body", "64 levels"),
    ],
)  # fmt: skip
async def test_hostile_event_is_400_with_the_field(serve: Serving, body: Any, param: str, text: str) -> None:
    async with serve(rights=RIGHTS) as served:
        status, error, headers = await posted(served, body)
        kept = await events_of(served)

    assert (status, error["param"] or "", kept) == (400, param, [])
    assert text in error["message"]
    assert headers["x-should-retry"] == "false"


async def test_large_event_is_413(serve: Serving) -> None:
    async with serve(rights=RIGHTS, most_bytes=2000) as served:
        status, error, _ = await posted(served, {"kind": "venue.order", "body": {"a": "x" * 2000}})

    assert (status, error["code"]) == (413, "request_too_large")


async def test_answer_is_passed_on_beside_an_event(serve: Serving) -> None:
    async with serve(rights=RIGHTS) as served:
        text, call = await asked(served, "Judge.")
        async with served.request("POST", "/t/x/v1/events", data=json.dumps({"kind": "agent.noted", "caused_by": call, "body": {"x": "y" * 70_000}})) as answer:  # fmt: skip
            page = await answer.json()
        [event] = await events_of(served)

    assert text.startswith(TEXT)
    # The trace of an event is its cause's, whatever the address says.
    assert event.trace_id == page["trace_id"] != "x"


ORDER_KEY = {"idempotency-key": "order-7"}


async def test_event_that_is_sent_again_with_its_idempotency_key_is_recorded_once(serve: Serving) -> None:
    store = MemoryInteractionStore()
    async with serve(rights=RIGHTS, ports=Ports(store=store)) as served:
        _, call = await asked(served, "Judge.", path=f"/t/d1{CHAT}")
        order = {"kind": "venue.order", "caused_by": call, "require_sound": True, "body": {"price": 1.10}}
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(posted(served, order, headers=ORDER_KEY)) for _ in range(4)]
        tries = [one.result() for one in asking]
        refused = {"model": "gpt", "messages": [{"role": "user", "content": "@400"}]}
        async with served.request("POST", f"/t/d1{CHAT}", data=json.dumps(refused)):
            pass
        late = await posted(served, order, headers=ORDER_KEY)
    async with serve(rights=RIGHTS, ports=Ports(store=store)) as served:
        restarted = await posted(served, order, headers=ORDER_KEY)
        others = [
            await posted(served, {**order, **change}, headers=ORDER_KEY)
            for change in ({"kind": "venue.fill"}, {"caused_by": tries[0][1]["id"]}, {"body": {"price": 1.2}})
        ]
        twin = await posted(served, {**order, "require_sound": False})
        kept = await events_of(served)

    assert [one[0] for one in (*tries, late, restarted)] == [201] * 6
    assert len({one[1]["id"] for one in (*tries, late, restarted)}) == 1
    assert [(one[0], one[1]["code"], one[1]["param"]) for one in others] == [
        (422, "idempotency_key_reused", "Idempotency-Key")
    ] * 3
    assert [one.id for one in kept] == [late[1]["id"], twin[1]["id"]]


async def test_event_whose_cause_is_forgotten_is_still_recorded_once(serve: Serving) -> None:
    async with serve(rights=RIGHTS) as served:
        async with served.request("POST", CHAT, data=json.dumps({"model": "gpt", "messages": []})) as answer:
            order = {"kind": "venue.order", "caused_by": (await answer.json())["id"]}
        first = await posted(served, order, headers=ORDER_KEY)
        served.server.causes = Causes()
        again = await posted(served, order, headers=ORDER_KEY)

    assert first[:2] == again[:2]
    assert first[0] == 201


async def test_refused_event_may_be_sent_again_with_its_idempotency_key(serve: Serving) -> None:
    async with serve(rights=RIGHTS) as served:
        _, call = await asked(served, "Judge.")
        unknown = await posted(served, {"kind": "venue.order", "caused_by": "x"}, headers=ORDER_KEY)
        known = await posted(served, {"kind": "venue.order", "caused_by": call}, headers=ORDER_KEY)
        wrong = await posted(
            served, {"kind": "venue.order", "caused_by": call}, headers={"idempotency-key": "é"}
        )

    assert [unknown[0], known[0], wrong[0]] == [404, 201, 400]

"""Requests that are sent again: joined by `Idempotency-Key`, or as retries of a library, and paid once."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentic_trading.cancellation import OwnedTasks
from agentic_trading.client.outcome import StructuredOutcome, outcome_without_answer
from agentic_trading.clock import SimClock
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason, NoDecision
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.platform.config import TenantConfig
from agentic_trading.platform.platform import Ports
from agentic_trading.server import joins
from agentic_trading.server.api_keys import ApiKey
from tests.build import NOW, envelope, interaction
from tests.server.conftest import Served, ServeProcess, Serving, started
from tests.server.test_replies import attempt
from tests.server.test_server import EACH, said
from tests.stubs.running import page_of, serving

PATH = "/v1/responses"
BODY = EACH[PATH]
NAMED = {"idempotency-key": "order-7"}
AGAIN = {"x-stainless-retry-count": "1"}


class Held:
    """A gateway that holds its calls until they are released, and counts them."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.calls = 0
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()

    async def ask_structured(self, envelope: LLMEnvelope, *, check: Any = None) -> StructuredOutcome:
        self.calls += 1
        self.has_begun.set()
        await self.may_end.wait()
        outcome: StructuredOutcome = await self.inner.ask_structured(envelope)
        return outcome


def hold(served: Served) -> Held:
    """Hold the calls of a server."""
    behind: Any = served.server.served
    held = Held(behind.clients[""])
    behind.clients = {"": held}
    return held


async def joined(served: Served, number: int) -> None:
    """Let others run until so many requests have joined calls."""
    calls: list[joins.JoinedCall] = []
    for _ in range(100_000):
        calls = [one for calls in served.server._joins._calls.values() for one in calls.values()]
        if sum(one.joined for one in calls) == number:
            return
        await asyncio.sleep(0)
    raise AssertionError(calls)


@pytest.mark.parametrize("path", EACH)
async def test_requests_with_one_idempotency_key_are_one_call(serve: Serving, path: str) -> None:
    async with serve() as served:
        before, held = len(await served.asked()), hold(served)
        async with asyncio.TaskGroup() as group:
            tries = [group.create_task(said(served, path, EACH[path], headers=NAMED)) for _ in range(3)]
            await joined(served, 2)
            held.may_end.set()
        late = await said(served, path, EACH[path], headers=NAMED)
        sent = len(await served.asked()) - before

    answers = [*(one.result() for one in tries), late]
    assert [status for status, _, _ in answers] == [200] * 4
    assert len({str(body) for _, body, _ in answers}) == 1
    assert len({headers["x-agentic-interaction-id"] for _, _, headers in answers}) == 1
    assert sent == held.calls == 1


async def test_idempotency_key_of_another_request_is_422(serve: Serving) -> None:
    other = {**BODY, "input": "Judge again."}
    async with serve() as served:
        held = hold(served)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(said(served, PATH, BODY, headers=NAMED))
            await held.has_begun.wait()
            running = await said(served, PATH, other, headers=NAMED)
            held.may_end.set()
        recorded = await said(served, PATH, other, headers=NAMED)
        capped = await said(served, PATH, {**BODY, "max_output_tokens": 7}, headers=NAMED)
        wrong = await said(served, PATH, BODY, headers={"idempotency-key": "a b"})

    assert first.result()[0] == 200
    assert [(one[0], one[1]["code"]) for one in (running, recorded, capped)] == [
        (422, "idempotency_key_reused")
    ] * 3
    assert running[1]["param"] == "Idempotency-Key"
    assert (wrong[0], held.calls) == (400, 1)


async def test_idempotency_key_finds_its_call_after_a_restart(serve: Serving) -> None:
    store = MemoryInteractionStore()
    async with serve(ports=Ports(store=store)) as served:
        before = len(await served.asked())
        first = await said(served, PATH, BODY, headers=NAMED)
    async with serve(ports=Ports(store=store)) as served:
        again = await said(served, PATH, BODY, headers=NAMED)
        other = await said(served, PATH, {**BODY, "input": "x"}, headers=NAMED)
        sent = len(await served.asked()) - before

    assert (first[0], again[0], other[0], sent) == (200, 200, 422, 1)
    assert again[1] == first[1]
    for name in ("x-agentic-interaction-id", "x-agentic-trace-id", "x-agentic-cost-nusd"):
        assert again[2][name] == first[2][name]


async def test_keys_do_not_share_their_idempotency_keys(serve: Serving) -> None:
    store = MemoryInteractionStore()
    async with serve(ports=Ports(store=store)) as served:
        first = await said(served, PATH, BODY, headers=NAMED)
    async with serve(ports=Ports(store=store), name="other") as served:
        other = await said(served, PATH, BODY, headers=NAMED)

    assert first[2]["x-agentic-interaction-id"] != other[2]["x-agentic-interaction-id"]


async def test_refused_call_is_made_again_with_its_idempotency_key(serve: Serving) -> None:
    store = MemoryInteractionStore()
    poor, rich = ({"acme": TenantConfig(budget_usd=Decimal(usd))} for usd in ("0.0001", "5"))
    async with serve(ports=Ports(store=store), tenants=poor) as served:
        refused = [await said(served, PATH, BODY, headers=NAMED) for _ in range(2)]
    async with serve(ports=Ports(store=store), tenants=rich) as served:
        before = len(await served.asked())
        paid = [await said(served, PATH, BODY, headers=NAMED) for _ in range(2)]
        sent = len(await served.asked()) - before

    assert [one[0] for one in (*refused, *paid)] == [402, 402, 200, 200]
    assert paid[0][1] == paid[1][1]
    assert sent == 1


async def test_retry_of_a_library_joins_the_running_call_only(serve: Serving) -> None:
    async with serve() as served:
        before, held = len(await served.asked()), hold(served)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(said(served, PATH, BODY))
            await held.has_begun.wait()
            retry = group.create_task(said(served, PATH, BODY, headers=AGAIN))
            await joined(served, 1)
            held.may_end.set()
        late = await said(served, PATH, BODY, headers=AGAIN)
        twin = await said(served, PATH, BODY, headers={"x-stainless-retry-count": "0"})
        sent = len(await served.asked()) - before

    ids = [one[2]["x-agentic-interaction-id"] for one in (first.result(), retry.result(), late, twin)]
    assert ids[0] == ids[1]
    assert (len(set(ids)), sent) == (3, 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_retry_gets_the_answer_that_its_client_has_missed(serve: Serving, *, stream: bool) -> None:
    body = {**BODY, "stream": stream}
    timing = {"begins_after_s": 0.0, "pings_every_s": 0.01}
    async with serve(timing=timing) as served:
        before, held = len(await served.asked()), hold(served)

        async def leave() -> None:
            async with served.request("POST", PATH, json=body):
                await asyncio.Event().wait()

        tasks = OwnedTasks()
        client = tasks.start(leave(), name="client")
        await held.has_begun.wait()
        client.cancel()
        with pytest.raises(asyncio.CancelledError):
            await client
        held.may_end.set()
        await served.server.aclose()
        answers = []
        for _ in range(2):
            async with served.request("POST", PATH, json=BODY, headers=AGAIN) as answer:
                await answer.read()
                answers.append((answer.status, answer.headers["x-agentic-interaction-id"]))
        sent = len(await served.asked()) - before

    assert [status for status, _ in answers] == [200, 200]
    assert (len({name for _, name in answers}), sent) == (2, 2)


# --- the calls that are remembered -----------------------------------------------------------------------


KEY = ApiKey(name="desk", sha256="0" * 64, tenant="acme", agent="a", created=NOW)
NO_ANSWER = outcome_without_answer(
    NoDecision(reason=FailureReason(category=FailureKind.HALTED, description="x"), envelope_id="e"), ()
)


class Case:
    """Joins with a clock, over a log of the test."""

    def __init__(self, recorded: Callable[[str], Sequence[LLMInteraction]] = lambda _: ()) -> None:
        self.recorded = recorded
        self.tasks = OwnedTasks()
        self.clock = SimClock(NOW)
        self.joins = joins.Joins(self.clock, self, self.tasks)
        self.may_end = asyncio.Event()
        self.ran: list[LLMEnvelope] = []
        self.answer = NO_ANSWER

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> Sequence[LLMInteraction]:
        return self.recorded(envelope_id)

    async def run(self, asked: LLMEnvelope) -> joins.CallEnd:
        self.ran.append(asked)
        await self.may_end.wait()
        return self.answer

    def call(self, patience_s: float | None = None, **headers: str) -> joins.JoinedCall:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.joins.call(KEY, envelope(), named, self.run, patience_s)

    def retry(self) -> joins.JoinedCall:
        return self.call(x_stainless_retry_count="1")

    async def aclose(self) -> None:
        self.may_end.set()
        await self.tasks.aclose()


@pytest.mark.parametrize(("patience_s", "ends"), [(None, 1800.0), (14.0, 14.0)])
async def test_call_is_joined_within_the_time_of_its_client(
    monkeypatch: pytest.MonkeyPatch, patience_s: float | None, ends: float
) -> None:
    case = Case()
    times = iter([0.0, ends - 1, ends])
    monkeypatch.setattr(case.clock, "monotonic", lambda: next(times))

    first = case.call(patience_s)

    assert case.retry() is first
    assert case.retry() is not first
    await case.aclose()


async def test_retries_are_shared_among_equal_calls() -> None:
    case = Case()
    first, second = case.call(), case.call()

    assert [case.retry() for _ in range(3)] == [first, second, first]
    await case.aclose()


async def test_wrong_count_of_retries_is_ignored() -> None:
    case = Case()
    first = case.call()

    assert case.call(x_stainless_retry_count="soon") is not first
    await case.aclose()


async def test_call_with_a_key_is_not_joined_without_it() -> None:
    case = Case()
    named = case.call(idempotency_key="a")

    assert case.retry() is not named
    assert case.call(idempotency_key="a") is named
    await case.aclose()


async def test_finished_calls_are_forgotten_before_running_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "MOST_CALLS", 2)
    case = Case()
    case.answer = replace(NO_ANSWER, attempts=(attempt(1, None),))
    case.may_end.set()
    first = case.call(idempotency_key="a")
    await first.task
    case.may_end.clear()
    second = case.call(idempotency_key="b")
    third = case.call(idempotency_key="c")

    assert [*case.joins._calls[KEY.owner].values()] == [second, third]
    await case.aclose()


async def test_unsent_call_is_forgotten() -> None:
    case = Case()
    first = case.call(idempotency_key="a")
    await case.aclose()

    assert case.joins._calls[KEY.owner] == {}
    assert case.call(idempotency_key="a") is not first
    await case.aclose()


async def test_error_of_the_log_is_the_end_of_the_call() -> None:
    def broken(_: str) -> Sequence[LLMInteraction]:
        raise OSError("the disk is away")

    case = Case(broken)

    end = await case.call(idempotency_key="a").task

    assert isinstance(end, OSError)
    assert case.ran == []
    await case.aclose()


async def test_call_whose_next_attempt_is_missing_continues_with_its_envelope() -> None:
    first = envelope(envelope_id="first")
    case = Case(lambda _: [interaction(envelope=first, next_step="retry")])
    case.may_end.set()

    end = await case.call(idempotency_key="a").task

    assert (end, case.ran) == (NO_ANSWER, [first])
    await case.aclose()


async def test_many_refused_calls_use_up_an_idempotency_key(
    serve: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joins, "MOST_REFUSED", 2)
    poor = {"acme": TenantConfig(budget_usd=Decimal("0.0001"))}
    async with serve(tenants=poor) as served:
        tries = [await said(served, PATH, BODY, headers=NAMED) for _ in range(3)]

    assert [status for status, _, _ in tries] == [402, 402, 422]
    assert "2 calls with this Idempotency-Key were refused. Use a new one" in tries[2][1]["message"]


async def test_finished_call_is_forgotten_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.answer = replace(NO_ANSWER, attempts=(attempt(1, None),))
    case.may_end.set()
    times = iter([0.0, 14.0])
    monkeypatch.setattr(case.clock, "monotonic", lambda: next(times))
    old = case.call(14.0)
    await old.task
    new = case.call()

    assert list(case.joins._calls[KEY.owner].values()) == [new]
    await case.aclose()


# --- a server that is killed -----------------------------------------------------------------------------


async def asked_with_key(url: str, secret: str, text: str) -> tuple[int, Any, str]:
    """Ask with an `Idempotency-Key`, and return the status, the answer and the id of the call."""
    headers = {"authorization": f"Bearer {secret}", **NAMED}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}{PATH}", json={**BODY, "input": text}, headers=headers) as answer,
    ):
        return answer.status, await answer.json(), answer.headers.get("x-agentic-interaction-id", "")


def sent_to(vendor: str, text: str) -> int:
    return sum(one["body"].get("input") == text for one in page_of(vendor, "/requests")["requests"])


def test_answer_is_found_after_the_server_was_killed(place: Path, vendor: str) -> None:
    secret, text = (place / "secret.txt").read_text(), "Judge before the kill."
    with started(place, "--store", "log") as (url, process):
        first = asyncio.run(asked_with_key(url, secret, text))
        process.kill()
        process.wait()
    with started(place, "--store", "log") as (url, _):
        again = asyncio.run(asked_with_key(url, secret, text))
        other = asyncio.run(asked_with_key(url, secret, "Judge another one."))

    assert first[0] == 200
    assert again == first
    assert (other[0], sent_to(vendor, text)) == (422, 1)


def test_call_in_flight_at_a_kill_is_asked_again_and_stays_charged(place: Path, vendor: str) -> None:
    secret, text = (place / "secret.txt").read_text(), "Judge during the kill. @wait"

    async def leave(url: str) -> None:
        with suppress(aiohttp.ClientError):
            await asked_with_key(url, secret, text)

    async def killed(address: str, url: str, process: ServeProcess) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(leave(url))
            while not await asyncio.to_thread(sent_to, address, text):
                pass
            process.kill()

    # A stub of its own, because other tests let the calls of the shared one go on.
    with serving("tests.stubs.vendor_api") as own:
        file = place / "agentic-trading.toml"
        file.write_text(file.read_text().replace(vendor, own))
        with started(place, "--store", "log") as (url, process):
            asyncio.run(killed(own, url, process))
            process.wait()
        page_of(own, "/release")
        with started(place, "--store", "log") as (url, _):
            again = [asyncio.run(asked_with_key(url, secret, text)) for _ in range(2)]

        assert [status for status, _, _ in again] == [200, 200]
        assert again[0] == again[1]
        assert sent_to(own, text) == 2

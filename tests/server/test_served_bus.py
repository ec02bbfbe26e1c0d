"""Servers whose workers are other processes, on real buses: a call with one `Idempotency-Key` is paid once, whoever is killed."""

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.ids import random_id
from tests import kafka_server, redis_server
from tests.cli.conftest import Command
from tests.server.conftest import ServeProcess, started
from tests.stubs.running import page_of, serving
from tests.worker_processes import CLOCK, WITHIN_S, RunningWorker, worker

pytestmark = pytest.mark.timeout(kafka_server.FIRST_START_S)
PATH = "/v1/responses"
NAMED = {"idempotency-key": "order-7"}
KEY = ("--tenant", "acme", "--agent", "trader-1", "--model", "gpt=openai/stub-large", "--records-events")


@dataclass
class Fleet:
    """A worker on a bus, a stub of its provider, and the folder of the servers."""

    place: Path
    vendor: str
    worker: RunningWorker
    redis: redis_server.RealServer
    secret: str

    @contextmanager
    def server(self, store: str = "log") -> Iterator["Client"]:
        """Run a server in a process of its own."""
        with started(self.place, "--store", store) as (url, process):
            yield Client(url, self.secret, process)

    def sent(self, text: str) -> int:
        """Return how often the provider was asked this."""
        requests = page_of(self.vendor, "/requests")["requests"]
        return sum(one["body"].get("input") == text for one in requests)

    def until_sent(self, text: str) -> None:
        """Wait until the provider was asked this."""
        pause, end = threading.Event(), CLOCK.monotonic() + WITHIN_S
        while not self.sent(text):
            assert CLOCK.monotonic() < end, self.worker.text
            pause.wait(0.02)

    def release(self) -> None:
        """Let the provider answer."""
        page_of(self.vendor, "/release")


@dataclass
class Reply:
    """A reply of a server."""

    status: int
    body: bytes
    headers: "Message[str, str]"

    @property
    def page(self) -> Any:
        return json.loads(self.body)

    @property
    def facts(self) -> tuple[int, bytes, list[str | None]]:
        """All that replies to one call have in common."""
        names = ("x-agentic-interaction-id", "x-agentic-trace-id", "x-agentic-cost-nusd", "x-agentic-verdict")
        return self.status, self.body, [self.headers.get(name) for name in names]


@dataclass
class Client:
    """A client of a server that runs in `process`."""

    url: str
    secret: str
    process: ServeProcess

    def get(self, path: str, fields: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send a request, with the fields of its body if it has one."""
        data = None if fields is None else json.dumps(fields).encode()
        named = {"authorization": f"Bearer {self.secret}", **(headers or {})}
        try:
            with urlopen(Request(f"{self.url}{path}", data, named), timeout=60) as answer:  # noqa: S310 - a loopback address
                return Reply(answer.status, answer.read(), answer.headers)
        except HTTPError as refused:
            return Reply(refused.code, refused.read(), refused.headers)

    def ask(self, text: str, headers: Mapping[str, str] | None = None, **fields: Any) -> Reply:
        return self.get(PATH, {"model": "gpt", "input": text, **fields}, headers)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, place: Path, vendor: str, command: Command, tmp_path: Path
) -> Iterator[Fleet]:
    """Give a worker that serves on a bus of real servers: on a Redis, but for a test that asks for Kafka."""
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server.own_server("valkey"))
        # A stub of its own, because other tests let the calls of the shared one go on.
        own = stack.enter_context(serving("tests.stubs.vendor_api"))
        bus = redis.url
        if getattr(request, "param", "redis") == "kafka":
            bus = f"kafka://{request.getfixturevalue('kafka_servers')}"
        file = place / "agentic-trading.toml"
        urls = f'[bus]\nurl = "{bus}"\nnamespace = "http-{random_id()}"\n[ledger]\nurl = "{redis.url}"\n'
        file.write_text(f"{file.read_text().replace(vendor, own)}\n{urls}")
        assert command("topics", "create").code == ExitCode.DONE
        made = command("api-keys", "create", "events", *KEY)
        running = stack.enter_context(worker(tmp_path / "workers", "w1", "--config", str(file)))
        running.is_ready()
        yield Fleet(place, own, running, redis, made.out.split()[-1])


ON_BOTH = pytest.mark.parametrize("fleet", ["redis", "kafka"], indirect=True)


@ON_BOTH
def test_servers_pay_a_call_with_one_idempotency_key_once(fleet: Fleet) -> None:
    with fleet.server("log-1") as one, fleet.server("log-2") as other:
        with ThreadPoolExecutor() as threads:
            tries = [threads.submit(client.ask, "Judge @slow at both.", NAMED) for client in (one, other)]
        replies = [each.result() for each in tries]
        late = [client.ask("Judge @slow at both.", NAMED) for client in (other, one)]
        wrong = [client.ask("Judge another one.", NAMED) for client in (one, other)]

    assert replies[0].status == 200
    assert {str(one.facts) for one in (*replies, *late)} == {str(replies[0].facts)}
    assert [(one.status, one.page["error"]["code"]) for one in wrong] == [(422, "idempotency_key_reused")] * 2
    assert (fleet.sent("Judge @slow at both."), fleet.sent("Judge another one.")) == (1, 0)


@ON_BOTH
def test_retry_after_a_kill_is_paid_once_at_either_server(fleet: Fleet) -> None:
    text = "Judge @wait during the kill."

    with fleet.server("log-1") as one, fleet.server("log-2") as other:
        # Another number of equal requests than at the first server, which counts them from 0.
        alike = other.get(PATH, {"model": "gpt", "input": "Judge."}).status
        with ThreadPoolExecutor() as threads:
            first = threads.submit(one.ask, text, NAMED)
            fleet.until_sent(text)
            one.kill()
            assert isinstance(first.exception(), OSError)
        fleet.release()
        elsewhere = other.ask(text, NAMED)
    with fleet.server("log-1") as restarted:
        here = restarted.ask(text, NAMED)

    assert (alike, here.status) == (200, 200)
    assert here.facts == elsewhere.facts
    assert fleet.sent(text) == 1


@pytest.mark.soak
@ON_BOTH
def test_many_calls_are_paid_once_while_a_server_is_killed(fleet: Fleet) -> None:
    texts = [f"Judge @slow {number}." for number in range(40)]

    def ask(client: Client, number: int) -> Reply | None:
        try:
            return client.ask(texts[number], {"idempotency-key": f"order-{number}"})
        except OSError:
            return None

    with fleet.server("log-1") as one, fleet.server("log-2") as other, ThreadPoolExecutor(80) as threads:
        tries = [
            (number, threads.submit(ask, client, number))
            for number in range(len(texts))
            for client in (one, other)
        ]
        fleet.until_sent(texts[0])
        one.kill()
        first = [(number, reply) for number, each in tries if (reply := each.result()) is not None]
        again = [(number, ask(other, number)) for number in range(len(texts))]

    facts = {(number, str(reply and reply.facts)) for number, reply in (*first, *again)}
    assert len(first) < len(tries)
    assert len(facts) == len(texts)
    assert {reply.status for _, reply in (*first, *again) if reply} == {200}
    assert [fleet.sent(text) for text in texts] == [1] * len(texts)


def test_equal_requests_before_do_not_change_a_shared_call(fleet: Fleet) -> None:
    with fleet.server("log-1") as one, fleet.server("log-2") as other:
        first = one.ask("Judge.", NAMED)
        without = other.ask("Judge.")
        again = other.ask("Judge.", NAMED)

    assert [reply.status for reply in (first, without, again)] == [200, 200, 200]
    assert again.facts == first.facts
    assert without.facts != first.facts
    assert fleet.sent("Judge.") == 2


def test_refusal_at_one_server_is_asked_again_at_the_other(fleet: Fleet, command: Command) -> None:
    scope = ("--tenant", "acme", "--ledger", fleet.redis.url)
    with fleet.server("log-1") as one, fleet.server("log-2") as other:
        # Both commands return when the worker has acknowledged them.
        assert command("halt", *scope).code == ExitCode.DONE
        refused = one.ask("Judge it.", NAMED)
        assert command("resume", *scope).code == ExitCode.DONE
        paid = [client.ask("Judge it.", NAMED) for client in (other, one)]

    assert (refused.status, refused.page["error"]["code"]) == (403, "halted")
    assert [reply.status for reply in paid] == [200, 200]
    assert paid[0].facts == paid[1].facts
    assert fleet.sent("Judge it.") == 1


def test_call_waits_at_the_worker_and_is_429(fleet: Fleet, command: Command) -> None:
    made = command(
        "api-keys", "create", "big", *KEY, "--max-output-tokens", "64000", "--park-s", "0.2",
        "--usd-per-call", "1",
    )  # fmt: skip
    big = made.out.split()[-1]

    with fleet.server() as client:
        client.secret = big
        with ThreadPoolExecutor() as threads:
            held = threads.submit(client.ask, "Judge @wait first.", max_output_tokens=64_000)
            fleet.until_sent("Judge @wait first.")
            busy = client.ask("Judge second.", max_output_tokens=64_000)
            fleet.release()
        first, after = held.result(), client.ask("Judge third.")

    assert (first.status, after.status) == (200, 200), (first, after)
    assert (busy.status, busy.page["error"]["code"]) == (429, "budget_busy")
    assert (busy.headers["retry-after"], busy.headers["x-should-retry"]) == ("5", "true")
    assert fleet.sent("Judge second.") == 0


def test_server_on_a_bus_records_causes_events_and_traces(fleet: Fleet, command: Command) -> None:
    with fleet.server() as client:
        first = client.ask("Judge @report first.")
        text = first.page["output"][0]["content"][0]["text"]
        second = client.ask(f"Judge this: {text}")
        order = {"kind": "venue.order", "caused_by": second.page["id"], "require_sound": True, "body": {}}
        event = client.get("/v1/events", order)
        trace = client.get(f"/v1/traces/{event.page['trace_id']}")
        client.ask("@500 Judge.", {"x-agentic-trace-id": "broken"})
        broken = client.get("/v1/traces/broken")
        models = client.get("/v1/models")
        ready = client.get("/readyz")
        metrics = client.get("/metrics").body.decode()
        rest = client.process.ends()
    shown = command("trace", "why", event.page["id"], "--store", "log")
    spent = [
        json.loads(command("spend", "--store", log, "--json").out)["rows"] for log in ("log", "workers/w1")
    ]

    assert [reply.status for reply in (first, second, event)] == [200, 200, 201]
    assert event.page["trace_id"] == second.headers["x-agentic-trace-id"]
    assert event.page["trace_id"] == first.headers["x-agentic-trace-id"]
    assert (trace.page["calls"], trace.page["sound"]) == (2, True)
    assert (broken.page["failed"], broken.page["sound"]) == (1, False)
    assert [one["id"] for one in models.page["data"]] == ["gpt"]
    assert ready.page == {"ready": True, "problems": {}}
    assert 'agentic_http_requests_total{api="responses",key="events",status="200"} 2' in metrics
    assert 'agentic_workers_reporting{tenant="acme"} 1' in metrics
    assert (client.process.returncode, rest) == (ExitCode.DONE, "stopping\n")
    assert command("audit", "verify", "log").code == ExitCode.DONE
    assert shown.code == ExitCode.DONE, shown.err
    assert "venue.order" in shown.out
    assert spent[0] == spent[1]
    assert spent[0][0]["attempts"] > 3


def test_limits_of_a_bus_are_named(fleet: Fleet, command: Command) -> None:
    rich = command(
        "budget", "set", "tenant", "acme", "--tenant", "acme", "--usd", "9", "--ledger", fleet.redis.url
    )
    assert rich.code == ExitCode.DONE, rich.err
    count = {"model": "gpt", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    with fleet.server() as client:
        whole = client.ask("x" * (900 * 1024))
        # Its body is within the limit. As a text in the message, it is longer.
        escaped = client.ask('"' * (400 * 1024))
        too_long = client.ask("x" * (2 << 20))
        counted = client.get("/v1/messages/count_tokens", count)
        fleet.redis.kill()
        ready = client.get("/readyz")
        away = client.ask("Judge.", NAMED)

    assert whole.status == 200
    assert [reply.status for reply in (escaped, too_long, counted, ready, away)] == [413, 413, 501, 503, 503]
    assert "Allowed: at most 1048576 bytes" in escaped.page["error"]["message"], escaped.page
    assert "bus.max_message_bytes" in escaped.page["error"]["message"]
    assert "more than 1048576 bytes, bus.max_message_bytes" in too_long.page["error"]["message"]
    assert "has no provider that counts tokens" in counted.page["error"]["message"]
    assert set(ready.page["problems"]) == {"bus", "ledger"}
    assert away.page["error"]["code"] == "ledger_unavailable"
    assert fleet.sent("Judge.") == 0


def test_key_signs_its_calls_with_its_principal(fleet: Fleet, command: Command) -> None:
    assert command("keys", "create", "desk-a", "--dir", str(fleet.place / "keys")).code == ExitCode.DONE
    assert command("keys", "create", "other", "--dir", str(fleet.place / "keys")).code == ExitCode.DONE
    file = fleet.place / "agentic-trading.toml"
    file.write_text(f'principals_folder = "keys"\nsign_as = "other"\n{file.read_text()}')
    made = command("api-keys", "create", "signed", *KEY, "--principal", "desk-a")
    assert made.code == ExitCode.DONE, made.err
    fleet.worker.process.kill()
    with (
        worker(fleet.place / "workers", "w2", "--config", str(file)) as running,
        fleet.server() as client,
    ):
        running.is_ready()
        client.secret = made.out.split()[-1]
        signed = client.ask("Judge.")
        client.secret = fleet.secret
        as_configured = client.ask("Judge.")

    assert [reply.status for reply in (signed, as_configured)] == [200, 200]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bus", "redis://127.0.0.1:1"], "--ledger is not set"),
        (["--bus", "http://127.0.0.1:1"], "--bus: bus.url is a URL with the scheme http"),
        (
            ["--bus", "redis://127.0.0.1:1", "--provider", "recorded", "--from", "log"],
            "--bus is given with --from",
        ),
        (
            ["--ledger", "redis://127.0.0.1:1", "--provider", "recorded", "--from", "log"],
            "--ledger is given with --from",
        ),
    ],
)
def test_wrong_options_of_a_bus_are_refused_at_the_start(
    place: Path, command: Command, words: list[str], said: str
) -> None:
    ended = command("serve", "--http", "127.0.0.1:0", *words)

    assert ended.code == ExitCode.BAD_INPUT
    assert said in ended.err


def test_missing_topics_and_unreachable_servers_are_named_at_the_start(place: Path, command: Command) -> None:
    with redis_server.own_server("valkey") as redis:
        words = ("serve", "--http", "127.0.0.1:0", "--store", "log", "--bus", redis.url, "--ledger")
        without_topics = command(*words, redis.url)
        assert command("topics", "create", "--bus", redis.url).code == ExitCode.DONE
        without_ledger = command(*words, "redis://127.0.0.1:1")
    without_bus = command(*words, "redis://127.0.0.1:1")

    assert (without_topics.code, without_ledger.code, without_bus.code) == (
        ExitCode.BAD_INPUT, ExitCode.LOG_UNUSABLE, ExitCode.LOG_UNUSABLE,
    )  # fmt: skip
    assert "Run agentic-trading topics create" in without_topics.err
    assert "the ledger cannot be reached" in without_ledger.err
    assert "127.0.0.1" in without_bus.err
    assert not (place / "log").exists()

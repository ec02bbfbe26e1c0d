"""The HTTP server: its routes, the key of a request, and the replies of calls as wholes and as events."""

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol, TypeVar
from zoneinfo import ZoneInfo

from aiohttp import web

from agentic_trading.bus.errors import BusError, MessageTooLargeError
from agentic_trading.cancellation import OwnedTasks
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.clock import Clock
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.event import Event
from agentic_trading.llm.store import Records
from agentic_trading.llm.taps import KnownSecrets, Tap
from agentic_trading.llm.verbatim import Api
from agentic_trading.logger import get_logger
from agentic_trading.platform.listener import Connections, listening
from agentic_trading.platform.status_pages import is_loopback
from agentic_trading.server import calls, errors
from agentic_trading.server.api_keys import ApiKey
from agentic_trading.server.causes import Cause, Causes
from agentic_trading.server.errors import HttpFailure, RequestError, error_body
from agentic_trading.server.events import KeptEvents, read_event_request, state_page
from agentic_trading.server.fields import ClientRequest, FieldError, read_request
from agentic_trading.server.joins import CallEnd, JoinedCall, Joins, idempotency_key
from agentic_trading.server.shared_calls import SharedCalls

log = get_logger()

PATHS: Final[Mapping[str, Api]] = {
    "/chat/completions": "chat_completions",
    "/responses": "responses",
    "/messages": "messages",
}
COUNT_PATH: Final = "/messages/count_tokens"
EVENTS_PATH: Final = "/events"
TRACES_PATH: Final = "/traces/{trace_id}"

BEGINS_AFTER_S: Final = 20.0
"""Seconds after which a stream begins without an answer. A failure is then an event of it."""

PINGS_EVERY_S: Final = 10.0
"""Seconds between comments that keep a stream open."""

READ_WITHIN_S: Final = 30.0
"""Seconds in which a client must send the body of its request."""

TAKEN_WITHIN_S: Final = 75.0
"""Seconds in which a client must take what is written to it."""

READ_AT_ONCE_BYTES: Final = 64 * 1024
"""Bodies up to this size are read on the loop, longer ones in a thread."""

_Read = TypeVar("_Read")

_KEY_NAME: Final = web.RequestKey("key_name", str)
_JSON: Final = {"content-type": "application/json"}
_EVENTS: Final = {"content-type": "text/event-stream", "cache-control": "no-store"}


class AgentKeys(Protocol):
    """The API keys that requests are checked against."""

    def find(self, secret: str) -> ApiKey | None:
        """Return the key of a secret, or None if it is unknown, expired or revoked."""
        ...


class Served(Protocol):
    """The gateway behind a server."""

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of budgets."""
        ...

    def headers(self, envelope: LLMEnvelope) -> Mapping[str, str]:
        """Return the headers that a reply has beside those of its call."""
        ...

    def models(self, key: ApiKey) -> Sequence[str]:
        """Return the names of the models that a key may use."""
        ...

    def gateway(self, key: ApiKey) -> StructuredGateway:
        """Return the gateway of a key's principal. Raises `RequestError` without one."""
        ...

    async def count_tokens(self, envelope: LLMEnvelope, key: ApiKey) -> int:
        """Return the provider's count of input tokens. Raises `RequestError` without one."""
        ...

    async def keep(self, event: Event) -> None:
        """Write an event to the log. It returns when the event is durable."""
        ...

    @property
    def records(self) -> Records:
        """The queries of the log."""
        ...

    @property
    def shared(self) -> SharedCalls | None:
        """The calls that servers of one bus share. None for a server that is alone."""
        ...

    @property
    def taps(self) -> MutableMapping[str, Tap] | None:
        """The clients that get events as they come, by envelope id. None if no call can have one."""
        ...

    @property
    def secrets(self) -> KnownSecrets:
        """The secrets that no client may read."""
        ...

    def output_cap(self, envelope: LLMEnvelope, choices: int) -> int:
        """Return the most output tokens of an attempt with so many answers, by its budget and its model."""
        ...

    async def problems(self) -> Mapping[str, str]:
        """Return the reason for each part that cannot be used now."""
        ...

    async def metrics(self, requests: Mapping[tuple[str, str, str], int]) -> bytes:
        """Return the metrics. `requests` are counted by API, key and status."""
        ...


@dataclass(slots=True)
class ApiServer:
    """Answers the requests of agents.

    Attributes:
        keys: The API keys.
        served: The gateway.
        clock: The clock of deadlines.
        most_bytes: The size limit of a request.
        is_local: Whether only this machine can reach it. Requests to other hosts are then refused.
        begins_after_s, pings_every_s, read_within_s, taken_within_s: Time limits, in seconds.

    """

    keys: AgentKeys
    served: Served
    clock: Clock
    most_bytes: int
    is_local: bool = True
    begins_after_s: float = BEGINS_AFTER_S
    pings_every_s: float = PINGS_EVERY_S
    read_within_s: float = READ_WITHIN_S
    taken_within_s: float = TAKEN_WITHIN_S
    is_stopping: bool = False
    causes: Causes = field(default_factory=Causes)
    _calls: OwnedTasks = field(default_factory=OwnedTasks)
    _counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _joins: Joins = field(init=False)

    def __post_init__(self) -> None:
        """Make the joins of requests that are sent again."""
        self._joins = Joins(self.clock, self.served.records, self._calls, self.served.shared)

    def application(self) -> web.Application:
        """Return the application. Each path is also served below `/t/TRACE`, which names the trace of its calls."""
        # The limit of the bus, because the request must fit into one message of it.
        app = web.Application(middlewares=[self._guarded], client_max_size=self.most_bytes)
        # The SDK of Anthropic adds `/v1` itself, and that of OpenAI has it in its base URL.
        for prefix in ("/v1", "/t/{trace}/v1"):
            for path, api in PATHS.items():
                app.router.add_post(f"{prefix}{path}", partial(self._call, api))
            app.router.add_post(f"{prefix}{COUNT_PATH}", self._count_tokens)
            app.router.add_get(f"{prefix}/models", self._models)
            app.router.add_post(f"{prefix}{EVENTS_PATH}", self._record_event)
            app.router.add_get(f"{prefix}{TRACES_PATH}", self._trace)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def aclose(self) -> None:
        """Wait until the calls under way have ended. They go on without their clients."""
        await self._calls.aclose()

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Check the host, turn errors into replies, and count requests."""
        api = _api_of(request)
        try:
            self._check(request)
            answer = await handler(request)
        except RequestError as e:
            answer = _refused(api, e.failure, str(e), param=e.param)
        except web.HTTPException as e:
            answer = self._http_error(api, e)
        except Exception as e:  # noqa: BLE001 - a client must not see the inside of the program
            answer = _refused(api, *await _own_fault(request, e))
        self._counts[_label(request), request.get(_KEY_NAME, ""), str(answer.status)] += 1
        return answer

    def _check(self, request: web.Request) -> None:
        # Not `request.host`, which asks the resolver for the name of this machine if there is no header.
        if self.is_local and not _is_this_machine(request.headers.get("host", "")):
            # A web page must not reach this server by a name of its own (DNS rebinding).
            raise RequestError(errors.WRONG_HOST, "this server answers only as localhost or 127.0.0.1")
        # Health and readiness are still answered, so that a load balancer sees the end.
        if self.is_stopping and request.path not in {"/healthz", "/readyz"}:
            raise RequestError(errors.SHUTTING_DOWN, "the server is stopping. The request was not sent")

    def _http_error(self, api: Api, e: web.HTTPException) -> web.Response:
        match e:
            case web.HTTPRequestEntityTooLarge():
                text = f"the body has more than {self.most_bytes} bytes, bus.max_message_bytes of the configuration"
                return _refused(api, errors.TOO_LARGE, text)
            case web.HTTPMethodNotAllowed():
                allowed = ", ".join(sorted(e.allowed_methods))
                answer = _refused(api, errors.WRONG_METHOD, f"{e.method} is not allowed. Allowed: {allowed}")
                answer.headers["Allow"] = allowed
                return answer
            case web.HTTPNotFound():
                paths = ", ".join(
                    f"/v1{path}" for path in (*PATHS, COUNT_PATH, "/models", EVENTS_PATH, TRACES_PATH)
                )
                return _refused(api, errors.UNKNOWN_PATH, f"the path does not exist. Allowed: {paths}")
            case _:
                failure = HttpFailure(e.status, "invalid_request_error", "invalid_request_error")
                return _refused(api, failure, e.reason)

    def _key(self, request: web.Request) -> ApiKey:
        # Two headers, because each vendor's library has its own.
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        secret = request.headers.get("x-api-key") or (given.strip() if scheme.lower() == "bearer" else "")
        key = self.keys.find(secret) if secret else None
        if key is None:
            why = "the API key is missing" if not secret else "the API key is unknown, expired or revoked"
            raise RequestError(
                errors.UNKNOWN_KEY,
                f"{why}. Allowed: a key of `agentic-trading api-keys create`, not that of a provider",
            )
        request[_KEY_NAME] = key.name
        return key

    async def _read(self, request: web.Request, read: Callable[[bytes], _Read]) -> _Read:
        """Return the body of a request as `read` returns it. Raises `RequestError` if it is late or wrong."""
        try:
            async with asyncio.timeout(self.read_within_s):
                raw = await request.read()
        except TimeoutError as e:
            why = f"the body did not come within {self.read_within_s:g} seconds"
            raise RequestError(errors.SLOW_REQUEST, why) from e
        try:
            # In a thread if it is long, because other requests would wait for it.
            return read(raw) if len(raw) <= READ_AT_ONCE_BYTES else await asyncio.to_thread(read, raw)
        except FieldError as e:
            raise RequestError(errors.REFUSED_FIELD, str(e), param=e.param) from e

    async def _made(
        self, api: Api, request: web.Request, key: ApiKey
    ) -> tuple[ClientRequest, LLMEnvelope, Cause, str]:
        """Return the request, its envelope, its cause and the trace it names. Raises `RequestError` if it is refused."""
        trace = request.match_info.get("trace", "")
        if trace and not calls.is_trace(trace):
            raise RequestError(
                errors.REFUSED_FIELD, "the trace in the address has other characters than A-Z a-z 0-9 . _ : -"
            )

        def made(raw: bytes) -> tuple[ClientRequest, LLMEnvelope, Cause, str]:
            asked = read_request(calls.TABLES[api], raw)
            named = trace or calls.trace_in(request.headers, asked.metadata)
            cause = self.causes.find(key.owner, named, asked)
            envelope = calls.request_envelope(
                asked, key, request.headers, trace=trace, now=self.clock.now(), cause=cause
            )
            return asked, envelope, cause, named

        return await self._read(request, made)

    async def _call(self, api: Api, request: web.Request) -> web.StreamResponse:
        key = self._key(request)
        gateway = self.served.gateway(key)
        asked, envelope, cause, trace = await self._made(api, request, key)
        # A request that joins an earlier call gets the events of the whole: its own `run` is not called.
        tap = Tap(self.served.secrets, wants_usage=asked.include_usage)
        taps = self.served.taps if asked.stream and key.stream == "through" else None

        def run(envelope: LLMEnvelope) -> Awaitable[CallEnd]:
            work = _outcome(gateway, envelope, tap, taps)
            group, keep = (key.owner, trace), self.served.keep
            return self.causes.followed(work, envelope, cause, group, keep, self.served.shared)

        patience_s = calls.useful_s(request.headers)
        # A task of its own, because a call that was sent is paid: it goes on if its client goes away.
        call = self._joins.call(key, envelope, request.headers, run, patience_s, trace=trace)
        answer = await self._answer(request, asked, call, tap)
        async with self._taking(request):
            await answer.prepare(request)
            await answer.write_eof()
            self._joins.written(key, call)
        return answer

    async def _answer(
        self, request: web.Request, asked: ClientRequest, call: JoinedCall, tap: Tap
    ) -> web.StreamResponse:
        if not asked.stream:
            return _whole(await self._reply(asked, call))
        await tap.wait(call.task, self.begins_after_s)
        if tap.has_events or not call.task.done():
            return await self._kept_open(request, asked, call, tap)
        reply = await self._reply(asked, call)
        if reply.failure is not None:
            return _whole(reply)
        try:
            said = _events(asked, reply)
        except RequestError as e:
            refused = _refused(asked.api, e.failure, str(e))
            # The call is paid all the same, so that its cost and its id in the log are of use.
            refused.headers.update(reply.headers)
            return refused
        return web.Response(body=said, headers={**reply.headers, **_EVENTS})

    async def _reply(self, asked: ClientRequest, call: JoinedCall) -> calls.Reply:
        # Shielded, because a client that goes away would otherwise cancel a paid call.
        outcome = await asyncio.shield(call.task)
        if isinstance(outcome, MessageTooLargeError):
            why = f"{outcome} Raise bus.max_message_bytes of the configuration"
            raise RequestError(errors.TOO_LARGE, why)
        if isinstance(outcome, BusError):
            raise RequestError(errors.BUS_AWAY, str(outcome))
        if isinstance(outcome, Exception):
            raise outcome
        cap = self.served.output_cap(call.envelope, asked.choices)
        reply = calls.call_reply(asked, call.envelope, outcome, self.served.zone, cap)
        return replace(reply, headers={**reply.headers, **self.served.headers(call.envelope)})

    async def _kept_open(
        self, request: web.Request, asked: ClientRequest, call: JoinedCall, tap: Tap
    ) -> web.StreamResponse:
        """Begin a stream before the call has ended. From here on, a failure is an event in it."""
        stream = web.StreamResponse(headers={"x-agentic-trace-id": call.envelope.trace_id, **_EVENTS})
        ping = b'event: ping\ndata: {"type": "ping"}\n\n' if asked.api == "messages" else b": waiting\n\n"
        async with self._taking(request):
            await stream.prepare(request)
        # Pings, because proxies close a connection that stays silent.
        while not _is_gone(request) and ((events := tap.taken()) or not call.task.done()):
            async with self._taking(request):
                await stream.write(events or ping)
            await tap.wait(call.task, self.pings_every_s)
        if not _is_gone(request):
            said = await self._said(request, asked, call, tap)
            async with self._taking(request):
                await stream.write(said)
        return stream

    @asynccontextmanager
    async def _taking(self, request: web.Request) -> AsyncGenerator[None]:
        """Write to a client. One that has gone is no failure: its call goes on and can be joined.

        The connection of a client that does not read ends after `taken_within_s`, because it would otherwise
        occupy one of the connections without an end.
        """
        try:
            async with asyncio.timeout(self.taken_within_s):
                yield
        except ConnectionError:
            pass
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()

    async def _said(self, request: web.Request, asked: ClientRequest, call: JoinedCall, tap: Tap) -> bytes:
        """Return the end of a stream that has begun. A failure is an event, because the status has been sent."""
        try:
            reply = await self._reply(asked, call)
            if reply.failure is not None:
                return calls.error_event(asked, reply.body)
            if not tap.is_read:
                return _events(asked, reply)
            if not tap.problem:
                return tap.end
            failure, text = errors.STREAM_ENDED, tap.problem
        except RequestError as e:
            failure, text = e.failure, str(e)
        except Exception as e:  # noqa: BLE001 - a second response must not follow in the stream
            failure, text = await _own_fault(request, e)
        return calls.error_event(asked, error_body(asked.api, failure, text))

    async def _count_tokens(self, request: web.Request) -> web.Response:
        key = self._key(request)
        _, envelope, *_ = await self._made("messages", request, key)
        counted = await self.served.count_tokens(envelope, key)
        return web.json_response({"input_tokens": counted})

    async def _record_event(self, request: web.Request) -> web.Response:
        key = self._key(request)
        if not key.records_events:
            why = f"the key {key.name} may not record events. Allowed: a key of `api-keys create --records-events`"
            raise RequestError(errors.NO_EVENTS, why)
        asked = await self._read(request, read_event_request)
        event = await self._kept.record(key, asked, idempotency_key(request.headers))
        return web.json_response({"id": event.id, "trace_id": event.trace_id}, status=201)

    async def _trace(self, request: web.Request) -> web.Response:
        key, trace_id = self._key(request), request.match_info["trace_id"]
        return web.json_response(state_page(trace_id, await self._kept.state(key, trace_id)))

    @property
    def _kept(self) -> KeptEvents:
        return KeptEvents(self.served.records, self.served.keep, self.causes, self.clock)

    async def _models(self, request: web.Request) -> web.Response:
        """List the models of a key, in a form that the clients of both vendors read."""
        names = self.served.models(self._key(request))
        # Without a real time, because no vendor is asked.
        rows = [
            {
                "id": name,
                "object": "model",
                "type": "model",
                "created": 0,
                "created_at": "1970-01-01T00:00:00Z",
                "owned_by": "agentic-trading",
                "display_name": name,
            }
            for name in names
        ]
        ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        return web.json_response({"object": "list", "data": rows, "has_more": False, **ends})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _readyz(self, _request: web.Request) -> web.Response:
        problems = await self.served.problems()
        if self.is_stopping:
            problems = {**problems, "server": "it is stopping"}
        page = {"ready": not problems, "problems": dict(problems)}
        return web.json_response(page, status=503 if problems else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = await self.served.metrics(self._counts)
        return web.Response(body=text, headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _outcome(
    gateway: StructuredGateway, envelope: LLMEnvelope, tap: Tap, taps: MutableMapping[str, Tap] | None
) -> CallEnd:
    """Run a call. An error is returned, because its client may have gone, and the end of the server would raise it."""
    if taps is not None:
        taps[envelope.envelope_id] = tap
    try:
        return await gateway.ask_structured(envelope)
    except Exception as e:  # noqa: BLE001 - the reply raises it
        return e
    finally:
        if taps is not None:
            del taps[envelope.envelope_id]


async def _own_fault(request: web.Request, e: Exception) -> tuple[HttpFailure, str]:
    """Log an error of the program, and return what its client is told."""
    # In a thread, because a traceback reads source files.
    await asyncio.to_thread(log.error, "request_failed", path=request.path, exc_info=e)
    return HttpFailure(500, "internal_error", "api_error"), "the server failed. The reason is in its log"


def _events(asked: ClientRequest, reply: calls.Reply) -> bytes:
    """Return an answer as events. Raises `RequestError` if it has another form than its API gives it."""
    try:
        return calls.answer_events(asked, reply.body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        failure = HttpFailure(502, "provider_error", "api_error")
        raise RequestError(
            failure, f"the answer cannot be streamed ({type(e).__name__}: {e}). Ask without stream"
        ) from e


def _whole(reply: calls.Reply) -> web.Response:
    headers = {**reply.headers, **_JSON}
    if reply.failure is not None:
        headers["x-should-retry"] = "true" if reply.may_be_repeated else "false"
    return web.Response(status=reply.status, body=reply.body, headers=headers)


def _refused(api: Api, failure: HttpFailure, message: str, *, param: str = "") -> web.Response:
    again = "true" if failure == errors.SHUTTING_DOWN else "false"
    return web.Response(
        status=failure.status,
        body=error_body(api, failure, message, param=param),
        headers={"x-should-retry": again, **_JSON},
    )


def _api_of(request: web.Request) -> Api:
    """Return the API whose form an error has."""
    if "/messages" in request.path or "anthropic-version" in request.headers:
        return "messages"
    return "responses" if request.path.endswith("/responses") else "chat_completions"


def _label(request: web.Request) -> str:
    """Return the word for a request in metrics. Unknown paths have one word, so that they do not fill the memory."""
    path = "" if request.match_info.route.resource is None else request.match_info.route.resource.canonical
    path = path.removeprefix("/t/{trace}").removeprefix("/v1").removesuffix("/{trace_id}")
    return PATHS.get(path, path.strip("/").replace("/", "_") or "unknown")


def _is_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return is_loopback(name)


@asynccontextmanager
async def api_server(
    server: ApiServer,
    host: str,
    port: int,
    *,
    drain_s: float,
    tls: ssl.SSLContext | None = None,
    connections: Connections | None = None,
) -> AsyncGenerator[str]:
    """Serve while the block runs, then end the requests under way. Yields the URL. Port 0 selects a free port.

    Args:
        server: The server.
        host: The host.
        port: The port.
        drain_s: Seconds for the requests under way at the end.
        tls: The certificate of the server. None serves without TLS.
        connections: Its connections, with their limits.

    Raises:
        ListenError: If the address cannot be used.

    """
    loop = asyncio.get_running_loop()
    end = loop.time()
    app = server.application()
    try:
        async with listening(app, host, port, end_within_s=drain_s, tls=tls, connections=connections) as url:
            try:
                yield url
            finally:
                server.is_stopping = True
                end = loop.time() + drain_s
    finally:
        # Calls without a client have the rest of the time. The platform then ends those that still run.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await server.aclose()

"""A chat completions server in a process of its own: it does what the system text asks for, and bills what it did."""

import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from agentic_trading.testing.model_server import answer_to
from tests.stubs.invoice import Invoice
from tests.stubs.server import StubServer

MODEL = "stub-large"
SHARED_MODEL = "suite-1"  # that the suite of all providers asks for, whoever answers
PRICES = {  # dollars per million tokens
    MODEL: {"input": "1.25", "cached": "0.125", "written": "1.5", "output": "10"}
}
ANSWER = '{"action":"buy","size":1.50}'
KEYS = {"sk-stub-1", "sk-stub-2"}

Body = dict[str, Any]
Answer = Callable[["Handler", Body], None]

seen: list[Body] = []
asked: Counter[str] = Counter()
invoice = Invoice(PRICES)
stopped = threading.Event()


class Handler(BaseHTTPRequestHandler):
    """Answer one connection. A system text starts with `@` and the outcomes wanted, one a request: `@429,answer`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the standard library
        """Say nothing."""

    def do_GET(self) -> None:
        """Show the invoice, or the requests so far."""
        self.send(200, invoice.page() if self.path == "/invoice" else {"requests": seen})

    def do_POST(self) -> None:
        """Answer as the system text wants."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seen.append({"path": self.path, "headers": dict(self.headers), "body": body})
        key = self.headers["authorization"].removeprefix("Bearer ")
        if key not in KEYS:
            self.refuse(401, f"Incorrect API key provided: {key}", code="invalid_api_key")
        elif body["model"] not in {MODEL, SHARED_MODEL}:
            self.refuse(404, f"The model `{body['model']}` does not exist", code="model_not_found")
        else:
            OUTCOMES[_wanted(body)](self, body)

    def send(self, status: int, page: object, **headers: str) -> None:
        """Send a whole answer."""
        raw = page if isinstance(page, bytes) else json.dumps(page).encode()
        self.begin(status, len(raw), **headers)
        self.wfile.write(raw)

    def begin(self, status: int, length: int, **headers: str) -> None:
        """Send the head of an answer of `length` bytes."""
        self.send_response(status)
        for name, value in {"content-type": "application/json", "x-request-id": "req-7", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(length))
        self.end_headers()

    def refuse(self, status: int, message: str, *, code: str = "", param: str = "", **headers: str) -> None:
        """Send an error in the API's form; nothing is billed."""
        error = {
            "message": message,
            "type": "invalid_request_error",
            "code": code or None,
            "param": param or None,
        }
        self.send(status, {"error": error}, **headers)


def _wanted(body: Body) -> str:
    system = body["messages"][0]["content"]
    if not system.startswith("@"):
        return "numbered" if _number(body) is not None else "unscripted"
    call = system.partition("\n")[0]
    script = call[1:].split()[0].split(",")
    asked[call] += 1
    return str(script[min(asked[call], len(script)) - 1])


def _completion(
    text: str | None = ANSWER,
    *,
    reason: str | None = "stop",
    cached: int = 0,
    written: int = 0,
    thought: int = 0,
    output: int = 20,
    **more: Any,
) -> Body:
    """Return a completion of a hundred tokens in."""
    message = {"role": "assistant", "content": text, "refusal": more.pop("refusal", None)}
    message |= more.pop("message", {})
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "service_tier": "default",
        "choices": [
            {"index": 0, "message": message, "finish_reason": reason, "logprobs": more.pop("logprobs", None)}
        ],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": output,
            "total_tokens": 100 + output,
            "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
            "completion_tokens_details": {"reasoning_tokens": thought},
        },
    } | more


def _call(arguments: object = ANSWER, name: str = "answer") -> Body:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def _calls(*calls: Body, reason: str = "tool_calls", **what: Any) -> Answer:
    """Call tools, as a model does that was offered some; one that was not has nothing to call."""
    called = _sells(**{"text": None, **what}, reason=reason, message={"tool_calls": list(calls)})
    return lambda handler, body: called(handler, body) if "tools" in body else handler.refuse(400, "no tools")


def _billed(completion: Body, body: Body) -> Body:
    """Put a completion on the invoice, under the request's system text: each token once, in the class it is sold in."""
    usage = completion["usage"]
    details = usage["prompt_tokens_details"]
    cached, written = details["cached_tokens"], details["cache_write_tokens"]
    tokens = {"cached": cached, "written": written, "output": usage["completion_tokens"]}
    tokens["input"] = usage["prompt_tokens"] - cached - written
    invoice.bill(body["messages"][0]["content"].split("\n")[0], MODEL, tokens)
    return completion


def _sells(**what: Any) -> Answer:
    return lambda handler, body: handler.send(200, _billed(_completion(**what), body))


def _refuses(status: int, message: str = "no", **more: str) -> Answer:
    return lambda handler, body: handler.refuse(status, message, **more)


def _thinks_to_the_cap(handler: Handler, body: Body) -> None:
    cap = body.get("max_tokens") or body["max_completion_tokens"]
    handler.send(
        200, _billed(_completion('{"action":"b', reason="length", output=cap, thought=cap // 2), body)
    )


def _cuts_the_line(handler: Handler, body: Body) -> None:
    """Bill the whole answer and send half of it."""
    raw = json.dumps(_billed(_completion(), body)).encode()
    handler.begin(200, len(raw))
    handler.wfile.write(raw[: len(raw) // 2])
    handler.close_connection = True


def _never_ends(handler: Handler, body: Body) -> None:
    """Bill an answer, and send a blank now and then until the caller is gone."""
    _billed(_completion(), body)
    handler.begin(200, 10**9)
    try:
        while not stopped.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    except OSError:
        handler.close_connection = True


def _without_usage(handler: Handler, body: Body) -> None:
    completion = _billed(_completion(), body)
    handler.send(200, {name: value for name, value in completion.items() if name != "usage"})


def _number(body: Body) -> int | None:
    """Return the number that a request of the suite of all providers holds."""
    found = re.search(r'"context":\{"question":"question-(\d)"\}', body["messages"][1]["content"])
    return int(found[1]) if found else None


def _numbered(handler: Handler, body: Body) -> None:
    number = _number(body) or 0
    text = answer_to(number)
    if "tools" in body and number % 2:
        message = {"content": None, "tool_calls": [_call(text)]}
        handler.send(200, _billed(_completion(reason="tool_calls", message=message), body))
        return
    handler.send(200, _billed(_completion(text), body))


OUTCOMES: dict[str, Answer] = {
    "numbered": _numbered,
    "answer": _sells(),
    "thinking": _sells(thought=300, output=350),
    "cached": _sells(cached=64),
    "cache-written": _sells(cached=20, written=60),
    "wrong-answer": _sells(text='{"action":"hold"}'),
    "logprobs": _sells(
        logprobs={"content": [{"token": "{", "logprob": -0.5}, {"token": "}", "logprob": -1.5}]}
    ),
    "refusal": _sells(text=None, refusal="I cannot help with that."),
    "content-filter": _sells(text=None, reason="content_filter", output=0),
    "tool-call": _sells(
        text=None, reason="tool_calls", message={"tool_calls": [{"id": "1", "type": "function"}]}
    ),
    "answer-call": _calls(_call()),
    "demanded-call": _calls(_call(), reason="stop"),
    "call-beside-text": _calls(_call(), text='{"action":"sell","size":9}'),
    "two-calls": _calls(_call(), _call('{"action":"sell","size":9}')),
    "other-call": _calls(_call(name="buy")),
    "call-without-text": _calls(_call({"action": "buy", "size": 1})),
    "lost-call": _calls(text='{"action":"sell","size":9}'),
    "cut-call": _calls(_call('{"action":"buy","si'), reason="length"),
    "truncated": _thinks_to_the_cap,
    "other-model": _sells(model="stub-small"),
    "broken-off": _sells(text='{"acti', reason=None),
    "cut-line": _cuts_the_line,
    "never-ends": _never_ends,
    "no-usage": _without_usage,
    "web-page": lambda handler, body: handler.send(200, b"<html>", content_type="text/html"),
    "no-schemas": _refuses(400, "unknown field", param="response_format"),
    "schema-too-large": _refuses(400, "Invalid schema for response_format 'advice_v1': too many properties"),
    "no-tools": _refuses(400, '"auto" tool choice requires --enable-auto-tool-choice'),
    "tool-too-large": _refuses(
        400, "Invalid schema for function 'answer'", param="tools[0].function.parameters"
    ),
    "context": _refuses(400, "This model's context is 8192 tokens", code="context_length_exceeded"),
    "filtered-prompt": _refuses(400, "The prompt was filtered", code="content_filter"),
    "unscripted": _refuses(400),
    "403": _refuses(403),
    "402": _refuses(402),
    "404": _refuses(404),
    "408": _refuses(408),
    "409": _refuses(409),
    "413": _refuses(413),
    "422": _refuses(422),
    "429": _refuses(429),
    "429-ms": _refuses(429, retry_after_ms="1500"),
    "429-seconds": _refuses(429, retry_after="7"),
    "429-date": _refuses(429, retry_after="Fri, 02 Jan 2026 00:00:30 GMT"),
    "quota": _refuses(429, "You exceeded your current quota", code="insufficient_quota"),
    "500": _refuses(500),
    "502": _refuses(502),
    "503": _refuses(503),
    "504": _refuses(504),
    "529": _refuses(529),
    "loading": lambda handler, body: handler.send(
        503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    ),
    "redirect": lambda handler, body: handler.send(307, {}, location="/elsewhere"),
}


if __name__ == "__main__":
    server = StubServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)  # noqa: T201 - the caller reads it
    server.serve_forever()

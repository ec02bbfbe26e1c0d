"""A stub of the Messages API: answers what the instructions say, refuses what the API refuses, and bills it.

The instructions hold `play:` and words of `PLAYS` or `FAILURES`, a comma between them: the first time that a request
comes it plays the first word, the second time the second, and from then on the last. Without them, the answer is that
to a question of the suite of providers. `GET /invoice` is the bill, `GET /last` the last request.
"""

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from agentic_trading.testing.model_server import answer_to
from tests.stubs.invoice import Invoice
from tests.stubs.server import StubServer

CURRENT, OLD = "2026-10-21", "2023-06-01"
PRICES = {
    "claude-sonnet-5-5": {"input": "2", "output": "10", "read": "0.10", "5m": "2.50", "1h": "4"},
    "claude-opus-5-5": {"input": "4", "output": "20", "read": "0.20", "5m": "5", "1h": "8"},
    "claude-sonnet-4-5-20250929": {"input": "3", "output": "15", "read": "0.30", "5m": "3.75", "1h": "6"},
}
GOOD = '{"action":"buy","size":1.50}'
LEVELS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True)
class Failure:
    """A refusal: nothing was processed, so nothing is billed."""

    status: int
    type: str
    message: str = "told by the stub"
    code: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, Any]:
        details = {"details": {"error_code": self.code}} if self.code else {}
        return {"type": "error", "error": {"type": self.type, "message": self.message, **details}}


FAILURES = {
    "rate_limit": Failure(429, "rate_limit_error"),
    "rate_limit_ms": Failure(429, "rate_limit_error", headers={"retry-after-ms": "1500"}),
    "rate_limit_s": Failure(429, "rate_limit_error", headers={"retry-after": "2"}),
    "rate_limit_date": Failure(
        429, "rate_limit_error", headers={"retry-after": "Fri, 01 Jan 2100 00:00:00 GMT"}
    ),
    "ramp_limit": Failure(429, "rate_limit_error", code="ramp_limit_exceeded"),
    "spend_limit": Failure(429, "rate_limit_error", code="enforced_spend_limit_reached"),
    "contract_limit": Failure(429, "rate_limit_error", code="contract_spend_limit_reached"),
    "overloaded": Failure(529, "overloaded_error"),
    "error_500": Failure(500, "api_error"),
    "error_502": Failure(502, "api_error"),
    "error_503": Failure(503, "api_error"),
    "error_504": Failure(504, "timeout_error"),
    "error_408": Failure(408, "timeout_error"),
    "conflict": Failure(409, "conflict_error"),
    "unauthorised": Failure(401, "authentication_error"),
    "forbidden": Failure(403, "permission_error"),
    "unpaid": Failure(402, "billing_error"),
    "bad_request": Failure(400, "invalid_request_error"),
    "not_found": Failure(404, "not_found_error"),
    "too_large": Failure(413, "request_too_large"),
    "unprocessable": Failure(422, "invalid_request_error"),
    "teapot": Failure(418, ""),
    "redirect": Failure(307, "", headers={"location": "/elsewhere"}),
    "grammar": Failure(400, "invalid_request_error", "output_config.format: compiled grammar is too large"),
    "optional": Failure(400, "invalid_request_error", "Schemas contains too many optional parameters (31)"),
    "unions": Failure(400, "invalid_request_error", "Schemas contains too many parameters with union types"),
    "complex": Failure(400, "invalid_request_error", "Schema is too complex for compilation"),
    "tool_schema": Failure(400, "invalid_request_error", "tools.0.custom.input_schema: not supported"),
}
REFUSED_SCHEMAS = ("grammar", "optional", "unions", "complex", "tool_schema")

Reply = dict[str, Any]


def answer(body: dict[str, Any], text: str = GOOD) -> Reply:
    """Return a plain answer to `body`; about four bytes are a token."""
    size = len(json.dumps([body["system"], body["messages"]]))
    return {
        "id": f"msg_{digest(body)}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": size // 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": len(text) // 4 + 1,
            "output_tokens_details": None,
            "service_tier": "standard",
            "speed": "standard",
            "inference_geo": "not_available" if "4-5" in body["model"] else "global",
        },
    }


def changed(body: dict[str, Any], *, usage: dict[str, Any] | None = None, **fields: Any) -> Reply:
    """Return a plain answer with other fields."""
    reply = answer(body) | fields
    reply["usage"] = reply["usage"] | (usage or {})
    return reply


def thinking(body: dict[str, Any]) -> Reply:
    kind = body.get("thinking", {}).get("type")
    content = [
        {"type": "thinking", "thinking": "", "signature": "c2lnbmVk"},
        {"type": "text", "text": GOOD[:10]},
        {"type": "text", "text": GOOD[10:] if kind in {"adaptive", "enabled"} else "not asked to think"},
    ]
    usage = {"output_tokens": 150, "output_tokens_details": {"thinking_tokens": 120}}
    return changed(body, content=content, usage=usage)


def cached(body: dict[str, Any]) -> Reply:
    writes = {"ephemeral_5m_input_tokens": 31, "ephemeral_1h_input_tokens": 17}
    usage = {"cache_creation_input_tokens": 48, "cache_read_input_tokens": 57, "cache_creation": writes}
    return changed(body, usage=usage | {"input_tokens": 13})


def of_context(body: dict[str, Any]) -> Reply | None:
    """Return the answer that depends on the context's question, or None where it has none."""
    found = re.search(r'"context":\{"question":"question-(\d+)"\}', body["messages"][0]["content"])
    if found is None:
        return None
    return answer(body, answer_to(int(found[1])))


PLAYS: dict[str, Callable[[dict[str, Any]], Reply | None]] = {
    "": of_context,
    "answer": answer,
    "thinking": thinking,
    "cached": cached,
    "in_us": lambda body: changed(body, usage={"inference_geo": "us"}),
    "no_geo": lambda body: changed(body, usage={"inference_geo": None, "speed": None}),
    "refusal": lambda body: changed(
        body, content=[], stop_reason="refusal", stop_details={"category": "cyber"}
    ),
    "truncated": lambda body: changed(
        body,
        content=[{"type": "text", "text": GOOD[:12]}],
        stop_reason="max_tokens",
        usage={"output_tokens": body["max_tokens"]},
    ),
    "other_model": lambda body: changed(body, model="claude-opus-5-5"),
    "no_stop": lambda body: changed(body, stop_reason=None),
    "paused": lambda body: changed(body, stop_reason="pause_turn"),
    "tool": lambda body: changed(
        body,
        stop_reason="tool_use",
        content=[{"type": "tool_use", "id": "toolu_1", "name": "buy", "input": {}}],
    ),
    "no_usage": lambda body: changed(body) | {"usage": None},
    "broken_usage": lambda body: changed(body, usage={"output_tokens": "many"}),
    "no_message": lambda body: {"type": "error", "error": {"type": "overloaded_error"}},
    "cut": answer,
    "hangs_up": answer,
    "silent": answer,
    "endless": answer,
    "page": answer,
    "broken_json": answer,
    "nested": answer,
}
PAGES = {
    "page": (b"<html>not an API</html>", "text/html"),
    "broken_json": (b'{"id":', "application/json"),
    "nested": (b"[" * 100_000, "application/json"),
}
UNREADABLE = {"no_usage", "broken_usage", "no_message"}


def spelled(page: Reply) -> str:
    """Return a page as JSON; `{"@raw": text}` stands for the text itself, whatever JSON would make of its digits."""
    return re.sub(r'\{"@raw": ("(?:[^"\\]|\\.)*")\}', lambda raw: str(json.loads(raw[1])), json.dumps(page))


def digest(body: dict[str, Any]) -> str:
    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:24]


def problem(headers: Any, body: dict[str, Any]) -> Failure | None:
    """Return what the API would refuse, or None."""
    key = headers.get("authorization", "").removeprefix("Bearer ")
    version = headers.get("anthropic-version")
    if not key.startswith("good"):
        return Failure(401, "authentication_error", f"invalid key {key}")
    if "traceparent" in headers:
        return Failure(400, "invalid_request_error", "the stub takes no trace headers")
    if "temperature" in body and (version != OLD or "4-5" not in body["model"] or "thinking" in body):
        return Failure(400, "invalid_request_error", "temperature: Extra inputs are not permitted")
    if body.get("thinking", {}).get("type") == "enabled" and "4-5" not in body["model"]:
        return Failure(400, "invalid_request_error", "thinking.type: enabled is not supported")
    if refused := tool_problem(body):
        return Failure(400, "invalid_request_error", refused)
    if body["model"] not in PRICES:
        return Failure(404, "not_found_error", f"model: {body['model']}")
    return None


def tool_problem(body: dict[str, Any]) -> str:
    """Return why tools are refused: those of strict mode are closed, and current models let nobody demand a call."""
    is_demanded = body.get("tool_choice", {}).get("type") in {"any", "tool"}
    if any(tool["strict"] and tool["input_schema"]["additionalProperties"] for tool in body.get("tools", [])):
        return "tools.0.custom: for 'object' type, 'additionalProperties' must be explicitly set to false"
    if is_demanded and "5-5" in body["model"]:
        return "tool_choice: forced tool use is not supported for this model"
    if is_demanded and body.get("thinking", {}).get("type") == "enabled":
        return "Thinking may not be enabled when tool_choice forces tool use."
    return ""


class Stub(StubServer):
    """The server and what it remembers: the invoice, how often each request came, and the last one."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.invoice = Invoice(PRICES)
        self.seen: Counter[str] = Counter()
        self.last: dict[str, Any] = {}
        self.gone = threading.Event()

    def word(self, body: dict[str, Any]) -> str:
        """Return what is played this time; nothing where the instructions do not say."""
        script = re.search(r"play: ([\w, ]+)", body["system"][0]["text"])
        words = script[1].split(", ") if script else [""]
        asked = digest(body["messages"]) + (script[1] if script else "")
        self.seen[asked] += 1
        return words[min(self.seen[asked], len(words)) - 1].strip()

    def bill(self, reply: Reply) -> None:
        usage = reply["usage"]
        writes = usage["cache_creation"]
        tokens = {
            "input": usage["input_tokens"],
            "output": usage["output_tokens"],
            "read": usage["cache_read_input_tokens"],
            "5m": writes["ephemeral_5m_input_tokens"],
            "1h": writes["ephemeral_1h_input_tokens"],
        }
        surcharge = "1.1" if usage["inference_geo"] == "us" else "1"
        self.invoice.bill(reply["id"], reply["model"], tokens, times=surcharge)


class Handler(BaseHTTPRequestHandler):
    """One connection to the stub."""

    protocol_version = "HTTP/1.1"

    @property
    def stub(self) -> Stub:
        return cast(Stub, self.server)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.reply(200, self.stub.invoice.page() if self.path == "/invoice" else self.stub.last)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.stub.last = {
            "body": body,
            "headers": {name.lower(): value for name, value in self.headers.items()},
        }
        if refused := problem(self.headers, body):
            self.fail(refused)
        elif self.path.endswith("/count_tokens"):
            uncounted = "play: page" in body["system"][0]["text"]
            self.reply(200, {} if uncounted else {"input_tokens": answer(body)["usage"]["input_tokens"]})
        else:
            self.play(self.stub.word(body), body)

    def play(self, word: str, body: dict[str, Any]) -> None:
        reply = PLAYS[word](body) if word in PLAYS else None
        if reply is None:
            self.fail(FAILURES.get(word, Failure(400, "invalid_request_error", f"cannot play {word!r}")))
            return
        if word not in UNREADABLE:
            self.stub.bill(reply)
        ways = {"cut": self.cut, "hangs_up": self.hang_up, "silent": self.wait, "endless": self.drip}
        if word in ways:
            ways[word]()
        elif word in PAGES:
            self.send(200, *PAGES[word])
        else:
            self.reply(200, reply)

    def cut(self) -> None:
        self.head(200, 10_000)
        self.wfile.write(b'{"id":"msg_1","content":[')
        self.close_connection = True

    def hang_up(self) -> None:
        self.close_connection = True

    def wait(self) -> None:
        """Say nothing until the other side gives up."""
        self.rfile.read()

    def drip(self) -> None:
        """Send a blank every few milliseconds, for as long as somebody reads: each read is in time."""
        self.head(200, 1_000_000)
        try:
            while not self.stub.gone.wait(0.005):
                self.wfile.write(b" ")
        except OSError:
            self.close_connection = True

    def fail(self, failure: Failure) -> None:
        self.send(failure.status, json.dumps(failure.body).encode(), "application/json", failure.headers)

    def reply(self, status: int, page: Reply) -> None:
        self.send(status, spelled(page).encode(), "application/json")

    def send(self, status: int, raw: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.head(status, len(raw), kind, headers or {})
        self.wfile.write(raw)

    def head(
        self,
        status: int,
        length: int,
        kind: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        fields = {
            "content-type": kind,
            "content-length": str(length),
            "request-id": "req_1",
            **(headers or {}),
        }
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()


def main() -> None:
    """Serve until the process is ended; the first line of output is the port."""
    stub = Stub()
    sys.stdout.write(f"{stub.server_address[1]}\n")
    sys.stdout.flush()
    stub.serve_forever()


if __name__ == "__main__":
    main()

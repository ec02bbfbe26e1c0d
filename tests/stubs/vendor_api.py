"""A stub of chat completions, responses and Messages: answers what the last user text asks for, and bills it.

The text holds words such as `@tool`, of `_ANSWERS` or a status such as `@429`. `GET /invoice` is the bill, `GET /requests` are the
requests so far. A body has blanks, digits and a field that no client knows, so that a changed byte is seen.
"""

import json
import re
import threading
import time
import zlib
from collections import defaultdict
from hashlib import sha256
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.stubs.invoice import Invoice
from tests.stubs.server import StubServer
from tests.stubs.vendor_events import events_of

MODELS = ("stub-large", "claude-stub")
PRICE = {"input": "2", "output": "10"}
OUTPUT = 20
TEXT = 'Trend up — 1.50 "points".'
ARGUMENTS = '{"symbol":"NVDA","size":1.50}'
WRONG = '{"direction":5,"symbol":5}'
JSON_TEXT = '{"direction":"up","strength":0.80}'

Body = dict[str, Any]

invoice = Invoice(dict.fromkeys(MODELS, PRICE))
seen: list[Body] = []
open_calls = threading.Event()
gates: defaultdict[str, threading.Event] = defaultdict(threading.Event)
SECRET = "sk-upstream"  # noqa: S105 - the key of the tests


def _prompt(body: Body) -> str:
    given = body.get("messages") or body.get("input") or ""
    return given if isinstance(given, str) else json.dumps(given[-1])


def _words(body: Body) -> list[str]:
    return re.findall(r"@([a-z0-9_]+)", _prompt(body))


def _is_json(body: Body) -> bool:
    forms = (
        body.get("response_format"),
        (body.get("text") or {}).get("format"),
        (body.get("output_config") or {}).get("format"),
    )
    return any(form and form["type"] == "json_schema" for form in forms)


def _text(body: Body) -> str:
    if "wrong" in _words(body):
        return WRONG
    if "secret" in _words(body):
        return f"The key is not at the start of this answer, but near its end: {SECRET}."
    if "count" in _words(body):
        return f"Answer {len(seen)}."
    if "long" in _words(body):
        return TEXT * 2000
    if "report" in _words(body):
        return _report(body)
    if "fields" in _words(body):
        return f"```json\n{json.dumps({'report': _report(body), 'size': 2}, indent=1)}\n```"
    return JSON_TEXT if _is_json(body) else f"{TEXT} {_prompt(body)[:40]}"


def _report(body: Body) -> str:
    """Return a text that is long enough to be quoted, another one for each prompt."""
    return f"Report {sha256(_prompt(body).encode()).hexdigest()}: margins grow, and the order book is full."


def _calls_tool(body: Body) -> bool:
    choice = body.get("tool_choice")
    return "tool" in _words(body) or (isinstance(choice, dict) and choice["type"] != "auto")


def _arguments(body: Body) -> str:
    return WRONG if "wrong" in _words(body) else ARGUMENTS


def _chat(body: Body, words: list[str], id_: str) -> Body:
    message: Body = {"role": "assistant", "content": _text(body), "refusal": None, "annotations": []}
    reason = "stop"
    if _calls_tool(body):
        calls = [
            {
                "id": f"call_{id_}_{place}",
                "type": "function",
                "function": {"name": tool["function"]["name"], "arguments": _arguments(body)},
            }
            for place, tool in enumerate(body["tools"])
        ]
        message |= {"content": None, "tool_calls": calls}
        reason = "tool_calls"
    if "refuse" in words:
        message |= {"content": None, "refusal": "I cannot help with that."}
    if "cut" in words:
        reason = "length"
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": reason}
        for index in range(body.get("n") or 1)
    ]
    return {
        "id": f"chatcmpl-{id_}",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": choices,
        "service_tier": "default",
    }


def _responses(body: Body, words: list[str], id_: str) -> Body:
    part: Body = {"type": "output_text", "text": _text(body), "annotations": [], "logprobs": []}
    if "refuse" in words:
        part = {"type": "refusal", "refusal": "I cannot help with that."}
    output: list[Body] = [
        {"type": "message", "id": f"msg_{id_}", "status": "completed", "role": "assistant", "content": [part]}
    ]
    if _calls_tool(body):
        output = [
            {
                "type": "function_call",
                "id": f"fc_{id_}",
                "call_id": f"call_{id_}",
                "name": tool["name"],
                "arguments": _arguments(body),
                "status": "completed",
            }
            for tool in body["tools"]
        ]
    if "think" in words:
        thought = {"type": "summary_text", "text": "Prices rise."}
        output.insert(
            0, {"type": "reasoning", "id": f"rs_{id_}", "summary": [thought], "encrypted_content": "b64=="}
        )
    is_cut = "cut" in words
    return {
        "id": f"resp_{id_}", "object": "response", "created_at": 1, "status": "incomplete" if is_cut else "completed",
        "error": None, "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None, "instructions": None,
        "model": body["model"], "output": output, "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": body.get("tools") or [], "temperature": 1.0, "top_p": 1.0, "metadata": {}, "service_tier": "default",
    }  # fmt: skip


def _messages(body: Body, words: list[str], id_: str) -> Body:
    content: list[Body] = [{"type": "text", "text": _text(body)}]
    reason = "end_turn"
    if _calls_tool(body):
        content += [
            {
                "type": "tool_use",
                "id": f"toolu_{id_}",
                "name": tool["name"],
                "input": json.loads(_arguments(body)),
            }
            for tool in body["tools"]
        ]
        reason = "tool_use"
    if "think" in words:
        content.insert(0, {"type": "thinking", "thinking": "Prices rise.", "signature": "c2ln"})
    if "refuse" in words:
        content, reason = [], "refusal"
    if "cut" in words:
        reason = "max_tokens"
    return {
        "id": f"msg_{id_}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
    }


_OF_PATH = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}


def _error_event() -> bytes:
    error = {"type": "rate_limit_error", "code": "rate_limit_exceeded", "message": "told by the stub"}
    return f"event: error\ndata: {json.dumps({'type': 'error', 'error': error})}\n\n".encode()


class Handler(BaseHTTPRequestHandler):
    """Answer one connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the standard library
        """Say nothing."""

    def do_GET(self) -> None:
        """Show the invoice or the requests, or let the calls that wait go on."""
        if self.path == "/release":
            open_calls.set()
        if self.path.startswith("/release/"):
            gates[self.path.removeprefix("/release/")].set()
        pages: dict[str, Body] = {"/invoice": invoice.page(), "/requests": {"requests": seen}}
        self._send(200, json.dumps(pages.get(self.path, {})).encode())

    def do_POST(self) -> None:
        """Answer as the last user text wants."""
        raw = self.rfile.read(int(self.headers["content-length"]))
        body = json.loads(raw)
        seen.append({
            "path": self.path,
            "headers": {k.lower(): v for k, v in self.headers.items()},
            "body": body,
            "raw": raw.decode(),
        })
        words = _words(body)
        status = next((int(word) for word in words if word.isdecimal()), 200)
        if status != 200:
            kind = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error"}.get(
                status, "invalid_request_error"
            )
            self._send(
                status,
                json.dumps({
                    "type": "error",
                    "error": {"type": kind, "message": "told by the stub", "code": None},
                }).encode(),
            )
            return
        if self.path.endswith("/count_tokens"):
            self._send(200, json.dumps({"input_tokens": len(raw) // 4}).encode())
            return
        if "wait" in words:
            open_calls.wait(20)
        for word in words:
            if word.startswith("hold_"):
                gates[word].wait(20)
        if "slow" in words:
            time.sleep(0.3)
        answer = self._answer(raw, body, words)
        if body.get("stream") and "nostream" not in words:
            self._stream(json.loads(answer), words)
        else:
            self._send(200, answer)

    def _stream(self, page: Body, words: list[str]) -> None:
        """Send an answer as events, and wait or break off where a word of the prompt wants it."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        packing = zlib.compressobj(wbits=31) if "gzip" in words else None
        if packing is not None:
            self.send_header("content-encoding", "gzip")
        self.send_header("x-request-id", "req-7")
        self.end_headers()
        events = events_of(self.path, page)
        for number, event in enumerate(events):
            is_half = number == len(events) // 2
            if "brokenfirst" in words or ("broken" in words and is_half):
                self.close_connection = True
                return
            for word in words if is_half else ():
                if word.startswith("gate_"):
                    gates[word].wait(20)
            said = _error_event() if "failing" in words and is_half else event
            self._send_piece(
                said if packing is None else packing.compress(said) + packing.flush(zlib.Z_SYNC_FLUSH)
            )
        if packing is not None:
            self._send_piece(packing.flush())
        self._send_piece(b"")

    def _send_piece(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.flush()

    def _answer(self, raw: bytes, body: Body, words: list[str]) -> bytes:
        page = _OF_PATH[self.path](body, words, sha256(raw).hexdigest()[:12])
        inward, outward = len(raw) // 4, OUTPUT * (body.get("n") or 1)
        invoice.bill(self.path, body["model"], {"input": inward, "output": outward})
        usage: Body = {"input_tokens": inward, "output_tokens": outward, "total_tokens": inward + outward}
        if self.path == "/v1/chat/completions":
            usage = {"prompt_tokens": inward, "completion_tokens": outward, "total_tokens": inward + outward}
        if self.path == "/v1/responses":
            usage |= {
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
        if "nousage" not in words:
            page["usage"] = usage
        if "page" in words:
            return b"<html>"
        spelled = json.dumps(page, indent=1, ensure_ascii=False)
        return spelled.replace("{", '{ "x_stub": 1.50,', 1).encode()

    def _send(self, status: int, raw: bytes) -> None:
        self.send_response(status)
        for name, value in {
            "content-type": "application/json",
            "x-request-id": "req-7",
            "request-id": "req-7",
        }.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    server = StubServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)  # noqa: T201 - the caller reads it
    server.serve_forever()

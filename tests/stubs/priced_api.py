"""The chat completions stub as a dear model: it bills nearly what may be used, and can end who asks in mid-request.

`GET /kill/PID/N` has it send `kill -9` to that process when N more requests have come in, billed and unanswered.
"""

import json
import os
import re
import signal
from contextlib import suppress

from typing_extensions import override

from tests.stubs.chat_api import MODEL, OUTCOMES, Body, Handler, invoice
from tests.stubs.server import StubServer

victims: list[tuple[int, int]] = []
"""At most one: a process, and how many requests from now end it."""


class Deadly(Handler):
    """Take orders to kill beside what the stub shows."""

    @override
    def do_GET(self) -> None:
        """Note whom to kill, or show what the stub shows."""
        order = re.fullmatch(r"/kill/(\d+)/(\d+)", self.path)
        if order is None:
            super().do_GET()
            return
        victims[:] = [(int(order[1]), int(order[2]))]
        self.send(200, {})


def sell(handler: Handler, body: Body) -> None:
    """Bill a request as it comes in, and answer with the first allowed value of every field."""
    cap = body.get("max_tokens") or body["max_completion_tokens"]
    tokens = {"input": len(json.dumps(body["messages"])) // 4, "output": cap - 1}
    invoice.bill(f"request-{len(invoice.page()['lines']) + 1}", MODEL, tokens)
    if victims:
        pid, left = victims.pop()
        if left == 1:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        victims.append((pid, left - 1))
    schema = body["response_format"]["json_schema"]["schema"]
    handler.send(200, {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": json.dumps(first_of(schema))},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": tokens["input"],
            "completion_tokens": tokens["output"],
            "total_tokens": sum(tokens.values()),
        },
    })  # fmt: skip


def first_of(schema: Body) -> object:
    """Return the first value of the type that a schema asks for; whether it is accepted does not matter to the bill."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return first_of(schema["anyOf"][0])
    match schema.get("type"):
        case "object":
            return {name: first_of(one) for name, one in schema.get("properties", {}).items()}
        case "array":
            return []
        case "number" | "integer":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case _:
            return "x"


OUTCOMES["unscripted"] = sell

if __name__ == "__main__":
    server = StubServer(("127.0.0.1", 0), Deadly)
    print(server.server_port, flush=True)  # noqa: T201 - the caller reads it
    server.serve_forever()

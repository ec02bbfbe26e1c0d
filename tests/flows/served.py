"""A chat completions server in a thread of the test's own: it answers as the rules would, and can be told to refuse."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import Any, cast

from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.offline import RulesProvider
from tests.desk.session.asking import OWN_MODEL
from tests.flows.sessions import evening, rules
from tests.stubs.server import StubServer


@dataclass
class Learning:
    """The rules under the name of a model; what they answer is kept by the text that they were asked."""

    inner: RulesProvider = field(default_factory=rules)
    answers: dict[str, str] = field(default_factory=dict)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        response = await self.inner.complete(request)
        self.answers[request.user] = response.text
        return replace(response, model=request.envelope.model)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self.inner.count_tokens(request)

    async def aclose(self) -> None:
        await self.inner.aclose()


async def answers_of_the_rules(**changes: Any) -> Mapping[str, str]:
    """Return what the rules answer to each question of a session under the name of the test's own model."""
    learning = Learning()
    await evening(learning, model=(LLMProvider.OPENAI, OWN_MODEL), **changes)
    return learning.answers


class Server(StubServer):
    """What is answered by question, else a text without an object; `refuses` is a status that every call gets instead."""

    def __init__(self, answers: Mapping[str, str], refuses: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers
        self.refuses = refuses
        self.asked = 0

    @property
    def url(self) -> str:
        """Where the API begins."""
        return f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    """Answer one connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Answer a completion."""
        server = cast(Server, self.server)
        server.asked += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if server.refuses is not None:
            self._send(server.refuses, {"error": {"message": "told by the server", "type": "x"}})
            return
        text = server.answers.get(body["messages"][-1]["content"], "no object at all")
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        page = {"id": "c-1", "object": "chat.completion", "created": 1, "model": body["model"]}
        self._send(200, {**page, "choices": [choice], "usage": usage})

    def _send(self, status: int, page: object) -> None:
        raw = json.dumps(page).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def served(answers: Mapping[str, str], *, refuses: int | None = None) -> Iterator[Server]:
    """Serve on a free port for as long as the block lasts."""
    with Server(answers, refuses) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()

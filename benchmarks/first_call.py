"""The same task in agentic_trading, instructor and pydantic-ai: lines, digits, and the outcome of unusable answers.

Run: python -m benchmarks.first_call. It prints a table in Markdown. A local server answers all three in the Messages API. The
first run installs the peers into an environment of their own.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

from typing_extensions import override

from benchmarks.house import Module
from benchmarks.peers.contender import PEERS, environment, versions

FOLDER: Final = PEERS / "first_call"
PRICE: Final = "27123.1234567890123"
"""The price in the answer: 18 digits, one more than a float keeps."""

ORDER: Final = f'{{"side": "buy", "price": {PRICE}, "quantity": 0.15}}'


Run = Callable[[Path, Mapping[str, str]], "subprocess.CompletedProcess[str]"]
"""Runs a program with additional variables in its environment."""

_RAISED: Final = re.compile(r"^(?:\w+\.)*([A-Z]\w*(?:Error|Exception|Behavior))\b", re.MULTILINE)
"""The class of the exception with which a traceback ends."""


@dataclass(frozen=True)
class Answer:
    """One answer of the model: a JSON object or plain text, and its stop reason."""

    text: str
    stop: str = ""

    def content(self, tool: str) -> tuple[str, str]:
        """Return the content block as JSON, in a call of `tool` if one is offered, and the reason to stop."""
        if tool and self.text.startswith("{"):
            block = (
                f'{{"type": "tool_use", "id": "call_1", "name": {json.dumps(tool)}, "input": {self.text}}}'
            )
            return block, self.stop or "tool_use"
        return json.dumps({"type": "text", "text": self.text}), self.stop or "end_turn"


ANSWERS: Final[Mapping[str, Answer]] = {
    "a valid answer": Answer(ORDER),
    "truncated: the price is missing": Answer('{"side": "buy"}', stop="max_tokens"),
    "out of bounds in every answer": Answer('{"side": "buy", "price": 27123.5, "quantity": 7}'),
    "a refusal": Answer("I cannot size orders.", stop="refusal"),
}


@dataclass
class Stub:
    """A server that gives the same answer to every request, and counts them."""

    answer: Answer
    url: str = ""
    requests: int = 0

    def reply(self, request: Mapping[str, Any]) -> tuple[str, bytes]:
        """Return the type and the body of a reply: one document, or events if the request asks for a stream."""
        self.requests += 1
        tools = request.get("tools") or [{"name": ""}]
        block, stop = self.answer.content(tools[-1]["name"])
        usage = '{"input_tokens": 100, "output_tokens": 50}'
        head = '"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5"'
        if not request.get("stream"):
            body = f'{{{head}, "content": [{block}], "stop_reason": "{stop}", "stop_sequence": null, "usage": {usage}}}'
            return "application/json", body.encode()
        text = json.dumps(self.answer.text)
        events = {
            "message_start": f'"message": {{{head}, "content": [], "stop_reason": null, "stop_sequence": null, "usage": {usage}}}',
            "content_block_start": '"index": 0, "content_block": {"type": "text", "text": ""}',
            "content_block_delta": f'"index": 0, "delta": {{"type": "text_delta", "text": {text}}}',
            "content_block_stop": '"index": 0',
            "message_delta": f'"delta": {{"stop_reason": "{stop}", "stop_sequence": null}}, "usage": {usage}',
            "message_stop": '"done": true',
        }
        lines = (f'event: {name}\ndata: {{"type": "{name}", {rest}}}\n\n' for name, rest in events.items())
        return "text/event-stream", "".join(lines).encode()


@contextmanager
def serving(answer: Answer) -> Iterator[Stub]:
    """Serve `answer` on a free port until the block ends."""
    stub = Stub(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kind, body = stub.reply(request)
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        @override
        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield stub
        finally:
            server.shutdown()


def lines_of(task: str) -> int:
    """Return the number of code lines of a program, without blank lines, comments and docstrings."""
    text = (FOLDER / f"{task}.py").read_text(encoding="utf-8")
    return Module(task, text, ast.parse(text)).code_lines


def run_by(python: Path | str) -> Run:
    """Return a function that runs programs with an interpreter."""
    return lambda program, env: subprocess.run(  # noqa: S603 - a program of this repository
        [python, program], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def outcome(run_program: Run, task: str, answer: Answer) -> str:
    """Run a program against a server with `answer`, and return its end and the number of requests."""
    with serving(answer) as stub:
        env = {"ANTHROPIC_BASE_URL": stub.url, "ANTHROPIC_API_KEY": "none"}
        run = run_program(FOLDER / f"{task}.py", env)
    requests = f"{stub.requests} request{'s' if stub.requests != 1 else ''}"
    if run.returncode:
        raised = _RAISED.findall(run.stderr) or [f"exit {run.returncode}"]
        return f"`{raised[-1]}`, {requests}"
    return f"`{run.stdout.strip()}`, {requests}"


def main() -> None:
    """Print the table."""
    python = environment("first_call")
    programs: dict[str, tuple[Run, str]] = {
        "agentic_trading": (run_by(sys.executable), "ours_task"),
        "instructor": (run_by(python), "instructor_task"),
        "pydantic-ai": (run_by(python), "pydantic_ai_task"),
    }
    print(f"Versions: {versions('first_call')}\n")
    print(f"| | {' | '.join(programs)} |\n|---|{'---|' * len(programs)}")
    print(f"| lines of code | {' | '.join(str(lines_of(task)) for _, task in programs.values())} |")
    for name, answer in ANSWERS.items():
        print(f"| {name} | {' | '.join(outcome(by, task, answer) for by, task in programs.values())} |")


if __name__ == "__main__":
    main()

"""A model server in memory, for tests of a provider."""

import asyncio
import re
from dataclasses import dataclass
from typing import Final, Literal

ServerFault = Literal["", "refused", "cut", "slow"]
"""The behaviour of a server: it answers, refuses the connection, cuts it after reading, or is too slow."""

_QUESTION: Final = re.compile(r"question-(\d+)")


@dataclass(frozen=True, slots=True)
class ServerReply:
    """An answer of the server, with the tokens that it bills."""

    text: str
    input_tokens: int
    output_tokens: int


class ModelServer:
    """The server that a provider under test asks. Connect the transport of your adapter to it.

    Attributes:
        asked: The number of requests, also those that could not arrive.
        fault: The behaviour for the next requests.
        hangs: Whether `answer` waits for ever.
        is_waiting: Set while `answer` waits.

    """

    def __init__(self, fault: ServerFault = "") -> None:
        self.asked = 0
        self.fault = fault
        self.hangs = False
        self.is_waiting = asyncio.Event()

    def reply(self, prompt: str) -> ServerReply:
        """Return the answer to a prompt.

        Raises:
            ValueError: The server refuses the request as invalid, as with HTTP status 400.
            ConnectionRefusedError: The request has not arrived.
            ConnectionResetError: The connection was cut after the request had arrived.
            TimeoutError: No answer has come in time.

        """
        self.asked += 1
        if self.fault == "refused":
            raise ConnectionRefusedError("the server is not reachable")
        if self.fault == "cut":
            raise ConnectionResetError("the connection was cut after the request")
        if self.fault == "slow":
            raise TimeoutError("no answer has come in time")
        asked = _QUESTION.findall(prompt)
        if not asked:
            raise ValueError("the request has no question of the suite")
        return ServerReply(answer_to(int(asked[-1])), input_tokens=11, output_tokens=7)

    async def answer(self, prompt: str) -> ServerReply:
        """Return `reply`, or wait until the request is cancelled while the server hangs."""
        if not self.hangs:
            return self.reply(prompt)
        self.asked += 1
        self.is_waiting.set()
        await asyncio.Event().wait()
        raise AssertionError("an event that is never set has been set")


def answer_to(number: int) -> str:
    """Return the answer to a question. Every second answer is not JSON, because a provider does not judge answers."""
    return f'{{"answer": "{number}"}}' if number % 2 else f" answer {number} é {{\n"

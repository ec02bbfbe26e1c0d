"""A provider that answers what it was told to, for examples and tests."""

from collections.abc import Callable, Iterable
from typing import assert_never

from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.token_estimate import stand_in_tokens, stand_in_usage

MODEL = "scripted-1"

ScriptedReply = str | ModelResponse | ProviderError
"""A text to answer with, a whole response, or an error to raise."""


class ScriptedProvider:
    """Answer from a script: lines in the order of the calls, or a function of the request.

    A text is an answer that ended by itself, from the requested model, with a stand-in count of four UTF-8 bytes a
    token. `requests` holds what was asked, in order.
    """

    def __init__(self, script: Iterable[ScriptedReply] | Callable[[ModelRequest], ScriptedReply]) -> None:
        self.requests: list[ModelRequest] = []
        self._next: Callable[[ModelRequest], ScriptedReply] = script if callable(script) else self._in_order
        self._lines: list[ScriptedReply] = [] if callable(script) else list(script)
        self._given = 0

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next answer, or raise the next error; `invalid_request` when the script is over."""
        self.requests.append(request)
        line = self._next(request)
        match line:
            case ProviderError():
                raise line
            case ModelResponse():
                return line
            case str():
                return ModelResponse(
                    text=line,
                    stop_reason="end_turn",
                    usage=stand_in_usage(request, line),
                    model=request.envelope.model or MODEL,
                )
            case _:
                assert_never(line)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the stand-in count of the request's text."""
        return stand_in_tokens(request.system, request.user)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _in_order(self, _request: ModelRequest) -> ScriptedReply:
        if self._given == len(self._lines):
            message = f"the script has {self._given} lines, and all are used; add one for this request"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False)
        self._given += 1
        return self._lines[self._given - 1]

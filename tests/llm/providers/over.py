"""A request over another transport than the one that the model's row would choose."""

from dataclasses import dataclass, replace
from typing import Any

from agentic_trading.llm.provider import ModelRequest, ModelResponse, Provider, Transport
from tests.structured.asking import ANSWER

TRANSPORTS: tuple[Transport, ...] = ("native_schema", "strict_tool", "json_mode", "prompted")


def over(transport: Transport, made: ModelRequest, **changes: Any) -> ModelRequest:
    """Return `made` over `transport`; `changes` are further fields of `ModelRequest`."""
    schema = made.envelope.expected_output_schema or ANSWER
    held = schema if transport in {"native_schema", "strict_tool"} else None
    return replace(made, **{"transport": transport, "response_schema": held, **changes})


@dataclass(frozen=True)
class Over:
    """A provider that is asked over one transport, whatever a request was made for."""

    provider: Provider
    transport: Transport
    forced_tool: bool = False

    async def complete(self, request: ModelRequest) -> ModelResponse:
        return await self.provider.complete(self._over(request))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self.provider.count_tokens(self._over(request))

    async def aclose(self) -> None:
        await self.provider.aclose()

    def _over(self, request: ModelRequest) -> ModelRequest:
        return over(self.transport, request, forced_tool=self.forced_tool)

"""The tools of an envelope: which definitions its names stand for, how they are offered, and how a call is read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.models import Capability
from agentic_trading.llm.provider import ModelRequest, ToolDefinition
from agentic_trading.structured.outcome import UnreadableError
from agentic_trading.structured.suggestions import near_miss
from agentic_trading.structured.validation import compile_schema

CALL_POLICY: Final = OutputPolicy(
    mode="native", decode="strict", candidates="whole", coerce=False, drop_extra=False, on_exhausted="fail"
)
"""How the input of a call is read, whatever the envelope's policy: as it stands, or not at all."""


def tools_by_name(definitions: Iterable[ToolDefinition]) -> Mapping[str, ToolDefinition]:
    """Return the definitions by name; raises `ValueError` for a name that stands twice, and for a schema that is none."""
    by_name: dict[str, ToolDefinition] = {}
    for tool in definitions:
        if tool.name in by_name:
            raise ValueError(f"the tool {tool.name!r} is defined twice; allowed is one definition a name")
        try:
            compile_schema(tool.parameters_json)
        except UnreadableError as e:
            raise ValueError(f"the parameters of the tool {tool.name!r} are no JSON Schema: {e}") from e
        by_name[tool.name] = tool
    return by_name


def tools_of(
    envelope: LLMEnvelope, capability: Capability, defined: Mapping[str, ToolDefinition]
) -> tuple[ToolDefinition, ...] | FailureReason:
    """Return what the names in `tools_allowed` stand for, or why the call must not be sent."""
    names = dict.fromkeys(envelope.tools_allowed)
    unknown = next((name for name in names if name not in defined), None)
    if unknown is not None:
        near = near_miss(unknown, defined)
        hint = f"; the nearest is {near!r}" if near else ""
        known = ", ".join(sorted(defined)) or "none"
        return _refused(f"the tool {unknown!r:.200} is not defined{hint}; defined are {known}")
    if names and not capability.takes_tools:
        model = f"{capability.provider}/{capability.model}"
        return _refused(f"{model} takes no tools; allowed are models with strict_tool or forced_tool")
    return tuple(defined[name] for name in names)


def offered(request: ModelRequest, tools: Sequence[ToolDefinition]) -> ModelRequest:
    """Return `request` with `tools`, one of which the model may call instead of answering."""
    names = ", ".join(f"`{tool.name}`" for tool in tools)
    system = f"{request.system}\n\nInstead of answering you may call one of these tools, once: {names}."
    return replace(request, system=system, tools=tuple(tools))


def _refused(why: str) -> FailureReason:
    return FailureReason(category=FailureKind.INVALID_REQUEST, description=why)

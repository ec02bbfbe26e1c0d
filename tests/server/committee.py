"""An agent of several roles that sends the fields of TradingAgents 0.3.0, over each API by its official SDK.

Four analysts call a tool and write a report, two researchers argue, and each decision is the arguments of a forced
tool. The next role gets the texts of the earlier ones. No request has an output limit, except the 128,000 tokens of
Anthropic's.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import anthropic
import openai

from agentic_trading.llm.verbatim import Api

ANALYSTS: Final = ("market", "sentiment", "news", "fundamentals")
CALLS: Final = 2 * len(ANALYSTS) + 8
"""The calls of a decision."""

_DATA: Final = {"type": "object", "properties": {"symbol": {"type": "string"}}, "required": ["symbol"]}
_PLAN: Final = {"type": "object", "properties": {"direction": {"type": "string"}}, "required": ["direction"]}


@dataclass
class Role(ABC):
    """Asks a model over one API, and keeps the bodies of all answers."""

    url: str
    secret: str
    trace: str
    bodies: list[bytes] = field(default_factory=list)

    @abstractmethod
    def report(self, system: str, user: str) -> str:
        """Return a text about the data of a tool that the model calls first."""

    @abstractmethod
    def text(self, system: str, user: str) -> str:
        """Return a text."""

    @abstractmethod
    def decision(self, name: str, user: str) -> str:
        """Return the arguments of a forced tool."""


class ChatRole(Role):
    """Asks as `ChatOpenAI` of LangChain does by default."""

    def report(self, system: str, user: str) -> str:
        tools = [{"type": "function", "function": {"name": "get_data", "parameters": _DATA}}]
        asked = [{"role": "system", "content": system}, {"role": "user", "content": f"{user} @tool"}]
        called = self._ask(asked, tools=tools)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "close 98.1, rsi 61.2"}
            for call in called["tool_calls"]
        ]
        return str(self._ask([*asked, called, *results], tools=tools)["content"])

    def text(self, system: str, user: str) -> str:
        return str(
            self._ask([{"role": "system", "content": system}, {"role": "user", "content": user}])["content"]
        )

    def decision(self, name: str, user: str) -> str:
        chosen = {"type": "function", "function": {"name": name}}
        answer = self._ask(
            [{"role": "user", "content": user}],
            tools=[{"type": "function", "function": {"name": name, "parameters": _PLAN}}],
            tool_choice=chosen,
            parallel_tool_calls=False,
        )
        return str(answer["tool_calls"][0]["function"]["arguments"])

    def _ask(self, messages: list[Any], **more: Any) -> dict[str, Any]:
        with openai.OpenAI(base_url=f"{self.url}/t/{self.trace}/v1", api_key=self.secret) as client:
            raw = client.chat.completions.with_raw_response.create(
                model="gpt", messages=messages, stream=False, **more
            )
        self.bodies.append(raw.content)
        message: dict[str, Any] = json.loads(raw.content)["choices"][0]["message"]
        return message


class ResponsesRole(Role):
    """Asks as LangChain does with the responses API."""

    def report(self, system: str, user: str) -> str:
        tools = [{"type": "function", "name": "get_data", "parameters": _DATA, "strict": False}]
        asked = [{"role": "system", "content": system}, {"role": "user", "content": f"{user} @tool"}]
        called = self._ask(asked, tools=tools)
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "close 98.1, rsi 61.2"}
            for call in called
        ]
        return _output_text(self._ask([*asked, *called, *results], tools=tools))

    def text(self, system: str, user: str) -> str:
        return _output_text(
            self._ask([{"role": "system", "content": system}, {"role": "user", "content": user}])
        )

    def decision(self, name: str, user: str) -> str:
        output = self._ask(
            [{"role": "user", "content": user}],
            tools=[{"type": "function", "name": name, "parameters": _PLAN, "strict": False}],
            tool_choice={"type": "function", "name": name},
            parallel_tool_calls=False,
        )
        return str(output[0]["arguments"])

    def _ask(self, given: list[Any], **more: Any) -> list[dict[str, Any]]:
        with openai.OpenAI(base_url=f"{self.url}/t/{self.trace}/v1", api_key=self.secret) as client:
            raw = client.responses.with_raw_response.create(model="gpt", input=given, stream=False, **more)
        self.bodies.append(raw.content)
        output: list[dict[str, Any]] = json.loads(raw.content)["output"]
        return output


class MessagesRole(Role):
    """Asks as `ChatAnthropic` of LangChain does."""

    def report(self, system: str, user: str) -> str:
        tools = [{"name": "get_data", "input_schema": _DATA}]
        asked = [{"role": "user", "content": f"{user} @tool"}]
        called = self._ask(asked, system=system, tools=tools)
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "close 98.1, rsi 61.2"}
            for block in called
            if block["type"] == "tool_use"
        ]
        turns = [*asked, {"role": "assistant", "content": called}, {"role": "user", "content": results}]
        return _block_text(self._ask(turns, system=system, tools=tools))

    def text(self, system: str, user: str) -> str:
        return _block_text(self._ask([{"role": "user", "content": user}], system=system))

    def decision(self, name: str, user: str) -> str:
        content = self._ask(
            [{"role": "user", "content": user}],
            tools=[{"name": name, "input_schema": _PLAN}],
            tool_choice={"type": "tool", "name": name},
        )
        return next(json.dumps(block["input"]) for block in content if block["type"] == "tool_use")

    def _ask(self, messages: list[Any], **more: Any) -> list[dict[str, Any]]:
        # Without a timeout, as LangChain does. The SDK refuses 128,000 tokens with its own one.
        with anthropic.Anthropic(
            base_url=f"{self.url}/t/{self.trace}", api_key=self.secret, timeout=None
        ) as client:
            raw = client.messages.with_raw_response.create(
                model="claude", max_tokens=128_000, messages=messages, **more
            )
        self.bodies.append(raw.http_response.content)
        content: list[dict[str, Any]] = json.loads(raw.http_response.content)["content"]
        return content


def _output_text(output: list[dict[str, Any]]) -> str:
    return str(output[-1]["content"][0]["text"])


def _block_text(content: list[dict[str, Any]]) -> str:
    return str(content[-1]["text"])


ROLES: Final[dict[Api, type[Role]]] = {
    "chat_completions": ChatRole,
    "responses": ResponsesRole,
    "messages": MessagesRole,
}


def decide(role: Role, symbol: str) -> str:
    """Return the decision about a symbol."""
    reports = [role.report(f"You are the {name} analyst.", f"Report on {symbol}.") for name in ANALYSTS]
    known = "\n".join(reports)
    bull = role.text("You argue for buying.", known)
    bear = role.text("You argue for selling.", f"{known}\n{bull}")
    plan = role.decision("ResearchPlan", f"Weigh both sides.\n{bull}\n{bear}")
    proposal = role.decision("TraderProposal", f"Propose a trade from the plan {plan}")
    risks = list(_debate(role, f"Judge the proposal {proposal}"))
    return role.decision("PortfolioDecision", "\n".join([proposal, *risks]))


def _debate(role: Role, question: str) -> Iterator[str]:
    for side in ("aggressive", "conservative", "neutral"):
        question += "\n" + (said := role.text(f"You are the {side} debater.", question))
        yield said

"""A provider without a model: rules that the wiring hands in write the text of an answer."""

from collections.abc import Callable, Mapping

from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import ProviderError
from agentic_trading.llm.failure import FailureKind
from agentic_trading.llm.limits import SENTINEL_NAME, SENTINEL_VALUE
from agentic_trading.llm.provider import ModelRequest, ModelResponse
from agentic_trading.llm.providers.token_estimate import cut_to, stand_in_tokens, stand_in_usage

MODEL = "rules-1"

Rule = Callable[[LLMEnvelope], str]
"""Write the text of the answer to an envelope; equal envelopes get equal texts."""


class RulesProvider:
    """Answer with the rule of the envelope's schema: its `$id` names the rule.

    The text goes the way of any model's: it is cut at the request's cap and read from its characters. Where the
    policy wants the sentinel, it is appended, as a model that was asked for it would. Tokens are a stand-in count of
    four UTF-8 bytes each.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = dict(rules)

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the rule's text; raises `ProviderError` (`invalid_request`) where no rule fits."""
        text = self._rule(request.envelope)(request.envelope)
        if request.envelope.output_policy.require_sentinel:
            text = append_sentinel(text)
        cut = stand_in_tokens(text) > request.max_tokens
        if cut:
            text = cut_to(text, request.max_tokens)
        return ModelResponse(
            text=text,
            stop_reason="max_tokens" if cut else "end_turn",
            usage=stand_in_usage(request, text),
            model=MODEL,
        )

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the stand-in count of the request's text."""
        return stand_in_tokens(request.system, request.user)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""

    def _rule(self, envelope: LLMEnvelope) -> Rule:
        name = str(envelope.expected_output_schema.get("$id", ""))
        try:
            return self._rules[name]
        except KeyError:
            known = ", ".join(sorted(self._rules)) or "none"
            message = f"no rule for schema {name!r}; known are {known}"
            raise ProviderError(FailureKind.INVALID_REQUEST, message, sent=False) from None


def append_sentinel(text: str) -> str:
    """Return the text of an object with the sentinel as its last member; any other text as it is."""
    body, brace, after = text.rpartition("}")
    if not brace or after.strip():
        return text
    comma = "" if body.rstrip().endswith("{") else ","
    return f'{body.rstrip()}{comma}"{SENTINEL_NAME}":"{SENTINEL_VALUE}"}}{after}'

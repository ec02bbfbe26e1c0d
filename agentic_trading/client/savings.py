"""How many tokens the form of an answer saves or costs: the same questions asked in both ways, counted from usage."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from agentic_trading.client.frame_calls import ASK, ASK_SCHEMA, INSTRUCTIONS
from agentic_trading.client.gateway import StructuredGateway
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import LLMEnvelope, ResponseFormat

TEXT_INSTRUCTIONS: Final = "Answer the one question in `context.question` from the evidence and from nothing else. Think step by step, then answer."


@dataclass(frozen=True, slots=True)
class Measured:
    """One question both ways: all output tokens, those of answers that were asked for again among them, and whether there was an answer."""

    question: str
    structured_tokens: int
    text_tokens: int
    structured_ok: bool
    text_ok: bool


@dataclass(frozen=True, slots=True)
class Savings:
    """What a set of questions took both ways. What structure costs by re-asks and failures counts against it."""

    measured: tuple[Measured, ...]

    @property
    def structured_tokens(self) -> int:
        """Output tokens of all structured calls."""
        return sum(one.structured_tokens for one in self.measured)

    @property
    def text_tokens(self) -> int:
        """Output tokens of all calls for text."""
        return sum(one.text_tokens for one in self.measured)

    @property
    def share(self) -> float | None:
        """Which share of the tokens of text structure saves, below zero where it costs more; None without any text."""
        return None if not self.text_tokens else 1 - self.structured_tokens / self.text_tokens

    @override
    def __str__(self) -> str:
        """Return the figures in one line, whatever their sign."""
        answered = sum(one.structured_ok for one in self.measured), sum(one.text_ok for one in self.measured)
        share = "no text to compare with" if self.share is None else f"{self.share:+.1%} saved"
        return (
            f"{len(self.measured)} questions · structured {self.structured_tokens} tokens, {answered[0]} answered"
            f" · text {self.text_tokens} tokens, {answered[1]} answered · {share}"
        )


async def measure_savings(
    gateway: StructuredGateway, questions: Iterable[str], build: Callable[[], EnvelopeBuilder]
) -> Savings:
    """Ask each question under `ASK_SCHEMA`, and as text, of the same model under the same cap, which `build` names.

    Raises what the gateway raises; a call that fails is counted by what it used.
    """
    measured = []
    for question in questions:
        structured = await gateway.ask_structured(_structured(build(), question))
        text = await gateway.ask_structured(_text(build(), question))
        measured.append(
            Measured(
                question=question,
                structured_tokens=structured.usage.output_tokens,
                text_tokens=text.usage.output_tokens,
                structured_ok=structured.ok,
                text_ok=text.ok,
            )
        )
    return Savings(tuple(measured))


def _structured(builder: EnvelopeBuilder, question: str) -> LLMEnvelope:
    builder = builder.with_instructions(INSTRUCTIONS[ASK], prompt_version=ASK)
    return builder.with_context({"question": question}).with_output_schema(ASK_SCHEMA).build()


def _text(builder: EnvelopeBuilder, question: str) -> LLMEnvelope:
    builder = builder.with_instructions(TEXT_INSTRUCTIONS, prompt_version="text.1")
    return builder.with_context({"question": question}).with_response_format(ResponseFormat.TEXT).build()

"""LangChain: prompt | chat model that answers at once | parser into a pydantic model, with a callback that keeps."""

from typing import Annotated, Any, Literal

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import PydanticOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult, LLMResult
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel, ConfigDict, Field

from benchmarks.peers.question import ANSWER, DATA, INSTRUCTIONS, PARSED
from benchmarks.peers.rounds import Round, answer_rounds, timed


class Finding(BaseModel):
    """One finding, with the evidence for it."""

    model_config = ConfigDict(extra="forbid")

    text: Annotated[str, Field(min_length=1, max_length=400)]
    evidence_ids: Annotated[list[Literal["E1", "E2", "E3"]], Field(min_length=1)]


class Assessment(BaseModel):
    """The answer, with the rules that the JSON Schema of the question has."""

    model_config = ConfigDict(extra="forbid")

    rationale: Annotated[str, Field(min_length=1, max_length=1000)]
    direction: Literal["long", "short", "none"]
    confidence: Annotated[float, Field(ge=0, le=1)]
    score: Annotated[int, Field(ge=-5, le=5)]
    stop: Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?$")]
    findings: Annotated[list[Finding], Field(min_length=1, max_length=8)]


class Stub(BaseChatModel):
    """A chat model that answers at once, with usage, as a real one does."""

    @property
    def _llm_type(self) -> str:
        return "stub"

    def _generate(self, *_args: Any, **_kwargs: Any) -> ChatResult:
        usage = {"input_tokens": 1_200, "output_tokens": 410, "total_tokens": 1_610}
        return ChatResult(generations=[ChatGeneration(message=AIMessage(ANSWER, usage_metadata=usage))])

    async def _agenerate(self, *_args: Any, **_kwargs: Any) -> ChatResult:
        return self._generate()


class Keeper(AsyncCallbackHandler):
    """Keep in memory what was asked and what was answered."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str]] = []
        self._asked: dict[Any, str] = {}

    async def on_chat_model_start(
        self, _serialized: Any, messages: list[list[BaseMessage]], *, run_id: Any, **_more: Any
    ) -> None:
        """Note the question."""
        self._asked[run_id] = str(messages[0][-1].content)

    async def on_llm_end(self, response: LLMResult, *, run_id: Any, **_more: Any) -> None:
        """Keep the question with its answer."""
        self.kept.append((self._asked.pop(run_id), response.generations[0][0].text))


async def call(count: int) -> Round:
    """Run the chain `count` times."""
    prompt = ChatPromptTemplate.from_messages([("system", "{instructions}"), ("user", "{data}")])
    chain = prompt | Stub() | PydanticOutputParser(pydantic_object=Assessment)
    config = {"callbacks": [Keeper()]}

    async def ask() -> Assessment:
        return await chain.ainvoke({"instructions": INSTRUCTIONS, "data": DATA}, config)

    return await timed(ask, lambda answer: answer.model_dump() == PARSED, count)


if __name__ == "__main__":
    answer_rounds({"call": call})

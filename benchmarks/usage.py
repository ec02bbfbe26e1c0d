"""What is recorded of the usages that servers of the chat completions API report, beside what their vendors bill.

Run: python -m benchmarks.usage [--quick]. A stub on the loopback reports each shape and keeps its own bill; each is asked
through a platform with the OpenAI adapter. Exits with 1 if less is recorded than billed, if a shape that a vendor
documents is not recorded exactly, if a bill above the reservation does not halt its model, or if an answer whose usage tells no bill
is refused, or not charged what was set aside. `--quick` is the same.
"""

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from pathlib import Path
from typing import Any

from typing_extensions import override

from agentic_trading.llm import EnvelopeBuilder, FailureKind, LLMInteraction, LLMProvider
from agentic_trading.llm.limits import RetryPolicy
from agentic_trading.platform import ModelConfig, Platform, PlatformConfig, PriceConfig, ProviderConfig

PLAIN, CACHED, WRITTEN, OUTPUT = 1250, Decimal("125.7"), 1500, 10_000
"""Nano-dollars per token: of the prompt, read from the cache, written to the cache, of the output."""
HIDDEN = (60, 0, 25)
"""What a server bills that does not say it, or not so that it can be told."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A usage as a server spells it, where that was seen, and the tokens billed: plain, cached, output.

    `written` are those of the prompt that are billed as written to the cache. `usd` is what the server itself bills. `page` is what else its body holds, where that is no answer. `is_exact` says that the fields tell the bill. Without it they allow a larger one, or, where `is_told` is not set
    either, none.
    """

    server: str
    usage: Any
    billed: tuple[int, int, int]
    source: str
    is_exact: bool = True
    is_told: bool = True
    written: int = 0
    usd: str = ""
    page: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bill_nusd(self) -> int:
        plain, cached, output = self.billed
        if self.usd:
            return ceil(Decimal(self.usd) * 10**9)
        return ceil(plain * PLAIN + cached * CACHED + self.written * WRITTEN + output * OUTPUT)


def _usage(prompt: Any, completion: Any, total: Any = None, **more: Any) -> dict[str, Any]:
    """Return a usage; cache reads are `cached`, thinking `reasoning`, and `inward` is more about the prompt."""
    found = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    inward = more.pop("inward", {})
    if "cached" in more:
        inward = {"cached_tokens": more.pop("cached"), **inward}
    if inward:
        found["prompt_tokens_details"] = inward
    if "reasoning" in more:
        found["completion_tokens_details"] = {"reasoning_tokens": more.pop("reasoning")}
    return {name: value for name, value in found.items() if value is not None} | more


def _untold(what: str, usage: Any) -> Shape:
    return Shape(f"a server, {what}", usage, HIDDEN, "", is_exact=False, is_told=False)


_TIMES = {"queue_time": 0.05, "prompt_time": 0.01, "completion_time": 0.2, "total_time": 0.21}
DOCUMENTED = (
    Shape("OpenAI", _usage(19, 10, 29, cached=0, reasoning=0), (19, 0, 10), "platform.openai.com/docs/api-reference/chat/object"),
    Shape("OpenAI, thinking", _usage(75, 1186, 1261, reasoning=1024), (75, 0, 1186), "platform.openai.com/docs/guides/reasoning"),
    Shape("OpenAI, cache", _usage(2006, 300, 2306, cached=1920), (86, 1920, 300), "platform.openai.com/docs/guides/prompt-caching"),
    Shape("Azure", _usage(1566, 1518, 3084, cached=1408, reasoning=576), (158, 1408, 1518), "learn.microsoft.com/azure/ai-foundry/openai/how-to/prompt-caching"),
    Shape("DeepSeek", _usage(1000, 200, 1200, prompt_cache_hit_tokens=768, prompt_cache_miss_tokens=232, cached=768), (232, 768, 200), "api-docs.deepseek.com/guides/kv_cache"),
    Shape("DeepSeek, own fields", _usage(1000, 200, 1200, prompt_cache_hit_tokens=768, prompt_cache_miss_tokens=232, reasoning=150), (232, 768, 200), "api-docs.deepseek.com/api/create-chat-completion"),
    Shape("Groq", _usage(4641, 1817, 6458, cached=4608, **_TIMES), (33, 4608, 1817), "console.groq.com/docs/prompt-caching"),
    Shape("xAI, thinking beside", _usage(32, 9, 135, reasoning=94), (32, 0, 103), "docs.x.ai/docs/key-information/consumption-and-rate-limits"),
    Shape("xAI, cache", _usage(10_120, 1499, 14_428, cached=128, reasoning=2809), (9992, 128, 4308), "github.com/Wei-Shaw/sub2api/issues/5771"),
    Shape("Gemini, thinking untold", _usage(20, 198, 623), (20, 0, 603), "github.com/mozilla-ai/any-llm/issues/1290"),
    Shape("Gemini, nothing but thinking", _usage(21, 0, 81, reasoning=60), (21, 0, 60), "github.com/router-for-me/CLIProxyAPI/issues/5733"),
    Shape("vLLM", _usage(34, 120, 154) | {"prompt_tokens_details": None}, (34, 0, 120), "github.com/vllm-project/vllm, entrypoints/openai/protocol.py: UsageInfo"),
    Shape("vLLM, cache", _usage(34, 120, 154, cached=16), (18, 16, 120), "docs.vllm.ai, --enable-prompt-tokens-details"),
    Shape("Ollama", _usage(26, 298, 324), (26, 0, 298), "github.com/ollama/ollama, openai/openai.go: Usage"),
    Shape("LiteLLM, writes under two names", _usage(9000, 50, 9050, cached=6000, inward={"cache_creation_tokens": 2900}, cache_read_input_tokens=6000, cache_creation_input_tokens=2900), (100, 6000, 50), "github.com/BerriAI/litellm/issues/11364", written=2900),
    Shape("Envoy AI Gateway, cache", _usage(9000, 50, 9050, cached=6000, inward={"cached_write_tokens": 2900}), (100, 6000, 50), "github.com/envoyproxy/ai-gateway/pull/1719", written=2900),
    Shape("OpenRouter, cache writes", _usage(9000, 50, 9050, cached=6000, inward={"cache_write_tokens": 2900}), (100, 6000, 50), "openrouter.ai/docs/features/prompt-caching", written=2900),
    Shape("llama.cpp", _usage(13, 40, 53, cached=0), (13, 0, 40), "github.com/ggml-org/llama.cpp, tools/server"),
)  # fmt: skip
ROUTED = (
    Shape("OpenRouter, cost", _usage(200, 50, 250, cost=0.0031, is_byok=False, cost_details={"upstream_inference_cost": None}), (200, 0, 50), "openrouter.ai/docs/use-cases/usage-accounting", usd="0.0031"),
    Shape("OpenRouter, upstream above cost", _usage(200, 50, 250, cost=0.0031, is_byok=False, cost_details={"upstream_inference_cost": 0.0035}), (200, 0, 50), "openrouter.ai/docs/use-cases/usage-accounting", usd="0.0035"),
    Shape("OpenRouter, own key", _usage(200, 50, 250, cost=0.0001, is_byok=True, cost_details={"upstream_inference_cost": 0.0035}), (200, 0, 50), "openrouter.ai/docs/use-cases/usage-accounting", usd="0.0036"),
    Shape("OpenRouter, upstream in parts", _usage(200, 50, 250, cost=0.0001, is_byok=True, cost_details={"upstream_inference_prompt_cost": 0.0015, "upstream_inference_completions_cost": 0.002}), (200, 0, 50), "openrouter.ai/docs/client-sdks/typescript/models/costdetails", usd="0.0036"),
    Shape("xAI, ticks", _usage(200, 50, 250, cost_in_usd_ticks=37_756_000), (200, 0, 50), "docs.x.ai/developers/cost-tracking", usd="0.0037756"),
    Shape("Perplexity, cost in parts", _usage(200, 50, 250, cost={"input_tokens_cost": 0.0002, "output_tokens_cost": 0.0003, "request_cost": 0.005, "total_cost": 0.0055}), (200, 0, 50), "docs.perplexity.ai/api-reference/chat-completions-post", usd="0.0055"),
    Shape("a router whose bill is below our sum", _usage(200, 50, 250, cost=0.0001, is_byok=False), (200, 0, 50), "openrouter.ai/docs/use-cases/usage-accounting"),
    Shape("a cost that is negative", _usage(200, 50, 250, cost=-1, is_byok=False), (200, 0, 50), ""),
    Shape("a cost that is a text", _usage(200, 50, 250, cost="0.0031", is_byok=False), (200, 0, 50), ""),
    Shape("a cost without a known unit", _usage(200, 50, 250, cost=3100), (200, 0, 50), ""),
)  # fmt: skip
OVERBILLED = (
    Shape("a bill above the reservation", _usage(200, 50, 250, cost=0.07, is_byok=False), (200, 0, 50), "", usd="0.07"),
    Shape("a bill of a usage without counts", _usage(60, None, cost=0.07, is_byok=False), HIDDEN, "", usd="0.07", is_told=False),
)  # fmt: skip
ALLOWING_MORE = (
    Shape("no total, thinking beside", _usage(100, 100, reasoning=700), (100, 0, 800), "", is_exact=False),
    Shape("no total, thinking inside", _usage(100, 800, reasoning=700), (100, 0, 800), "", is_exact=False),
    Shape("a total above its parts", _usage(100, 50, 400, reasoning=100), (100, 0, 300), "", is_exact=False),
    Shape("two counts of one cache", _usage(1000, 9, 1009, cached=900, prompt_cache_hit_tokens=100), (900, 100, 9), "", is_exact=False),
    Shape("two counts of cache writes", _usage(1000, 9, 1009, cached=100, inward={"cache_write_tokens": 10}, cache_creation_input_tokens=500), (400, 100, 9), "", is_exact=False, written=500),
    Shape("reads that are none by one name", _usage(1000, 9, 1009, cached=0, cache_read_input_tokens=900), (1000, 0, 9), "", is_exact=False),
    Shape("more thinking than output, in no total", _usage(100, 10, 110, reasoning=700), (100, 0, 710), "", is_exact=False),
    Shape("a miss above the rest", _usage(1000, 9, 1009, cached=900, prompt_cache_miss_tokens=500), (500, 500, 9), "", is_exact=False),
)  # fmt: skip
UNTOLD = (
    _untold("no usage", None),
    _untold("a list", [60, 25]),
    _untold("no count of what came out", _usage(60, None)),
    _untold("all zero", _usage(0, 0, 0)),
    _untold("nothing out", _usage(60, 0, 60)),
    _untold("negative", _usage(60, -25, 35)),
    _untold("true", _usage(60, None, 61) | {"completion_tokens": True}),
    _untold("a text", _usage("60", "25", "85")),
    _untold("a fraction", _usage(60.0, 25.0, 85.0)),
    _untold("huge", _usage(2**62, 25, 2**62 + 25)),
    _untold("a total below its parts", _usage(60, 25, 70)),
    _untold("a cache above its prompt", _usage(60, 25, 85, cached=61)),
    _untold("details that are none", _usage(60, 25, 85) | {"prompt_tokens_details": 7}),
)
_NOTHING, _PARTLY = (0, 0, 0), (60, 0, 25)


def _failed(
    what: str, page: Mapping[str, Any], usage: Any, billed: tuple[int, int, int], **more: Any
) -> Shape:
    return Shape(f"a 200 with {what}", usage, billed, "", page=page, **more)


def _error(code: int | None) -> Mapping[str, Any]:
    return {"choices": None, "error": {"code": code, "message": "no"}}


FAILED = (
    *(_failed(f"error {code}", _error(code), None, _NOTHING) for code in (400, 401, 402, 403, 404, 429)),
    _failed("error 429 and zeros", _error(429), _usage(0, 0, 0), _NOTHING),
    _failed("error 429 and a usage", _error(429), _usage(60, 25, 85), _PARTLY),
    _failed("error 500 and a usage", _error(500), _usage(60, 25, 85), _PARTLY),
    _failed("error 500", _error(500), None, HIDDEN, is_told=False),
    _failed("error 422", _error(422), None, HIDDEN, is_told=False),
    _failed("an unknown error", _error(None), None, HIDDEN, is_told=False),
    _failed("error 400 and a broken usage", _error(400), _usage("60", 25), HIDDEN, is_told=False),
    _failed("an answer broken off", {"choices": [{"message": {"content": "{"}, "finish_reason": "error"}]}, _usage(60, 25, 85), _PARTLY),
    _failed("no choices", {"choices": []}, _usage(60, 25, 85), _PARTLY),
    _failed("no choices and no usage", {"choices": []}, None, HIDDEN, is_told=False),
)  # fmt: skip
SHAPES = DOCUMENTED + ROUTED + ALLOWING_MORE + UNTOLD + FAILED + OVERBILLED


class _Server(BaseHTTPRequestHandler):
    """Answers with the shape whose number the system text begins with."""

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        shape = SHAPES[int(body["messages"][0]["content"].split()[0])]
        choice = {"index": 0, "message": {"role": "assistant", "content": "{}"}, "finish_reason": "stop"}
        page = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m-1", "choices": [choice]}
        raw = json.dumps(page | {"usage": shape.usage, **shape.page}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@contextmanager
def _serving() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Server) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


async def _recorded(base_url: str, folder: Path) -> list[tuple[LLMInteraction, bool]]:
    """Ask for every shape; return its record, and whether its model is halted from then on.

    All shapes have the model m-0, but for those that fail or are billed too much, which have one each.
    """
    first = len(SHAPES) - len(FAILED) - len(OVERBILLED)
    models = [f"m-{max(0, number - first)}" for number in range(1, len(SHAPES) + 1)]
    rows = [ModelConfig(
        model=model, context_tokens=100_000, max_output_tokens=8000, source="the stub", checked_on=date(2026, 1, 1),
        price=PriceConfig(input=PLAIN, cache_read=CACHED, cache_write_5m=WRITTEN, output=OUTPUT),
    ) for model in dict.fromkeys(models)]  # fmt: skip
    provider = ProviderConfig(adapter="openai", base_url=base_url, models=tuple(rows))
    found = []
    async with Platform(PlatformConfig(folder=folder, providers={"stub": provider})) as platform:

        async def ask(number: int, again: str = "") -> LLMInteraction:
            asked = EnvelopeBuilder().for_general().with_instructions(f"{number} Answer{again}.")
            asked = asked.with_retry_policy(RetryPolicy(max_retries=0))
            answer = await platform.ask(asked.with_provider(LLMProvider("stub"), models[number]).build())
            assert isinstance(answer, LLMInteraction)
            return answer

        for number in range(len(SHAPES)):
            answer, again = await ask(number), await ask(number, " again")
            is_halted = again.failure is not None and again.failure.category is FailureKind.HALTED
            found.append((answer, is_halted))
    return found


def problem_of(shape: Shape, answer: LLMInteraction, *, is_halted: bool = False) -> str:
    """Return which promise a shape breaks, or nothing; `is_halted` is whether the next call of its model is refused."""
    result = answer.result
    if result.cost_nusd < shape.bill_nusd:
        return "LESS THAN BILLED"
    if shape in OVERBILLED:
        return "" if is_halted and result.cost_nusd == shape.bill_nusd else "NOT HALTED, OR NOT EXACT"
    if is_halted:
        return "HALTED"
    if shape in FAILED:
        if result.in_doubt == shape.is_told or result.success:
            return "NOT REFUSED, OR NOT IN DOUBT"
        expected = shape.bill_nusd if shape.is_told else result.reserved_nusd
        return "" if result.cost_nusd == expected else "NOT EXACT"
    if result.in_doubt or not result.success:
        return "REFUSED"
    if not shape.is_told and not (result.unmetered and result.cost_nusd == result.reserved_nusd):
        return "NOT CHARGED IN FULL"
    return "NOT EXACT" if shape.is_exact and result.cost_nusd != shape.bill_nusd else ""


def run() -> list[tuple[Shape, LLMInteraction, bool]]:
    """Return each shape with its record, and whether its model is halted from then on."""
    with _serving() as url, tempfile.TemporaryDirectory() as folder:
        answers = asyncio.run(_recorded(url, Path(folder)))
    return [(shape, *answer) for shape, answer in zip(SHAPES, answers, strict=True)]


def main(arguments: Sequence[str]) -> int:
    """Print the table; return 1 if a promise is broken."""
    if set(arguments) - {"--quick"}:
        print(__doc__)
        return 2
    print(f"{'shape':<40}{'billed nUSD':>14}{'recorded':>14}  in doubt")
    problems = 0
    for shape, answer, is_halted in run():
        problem = problem_of(shape, answer, is_halted=is_halted)
        problems += bool(problem)
        doubt = "yes" if answer.result.in_doubt else ""
        print(
            f"{shape.server:<40}{shape.bill_nusd:>14,}{answer.result.cost_nusd:>14,}  {doubt:<9}{problem}".rstrip()
        )
    told = (
        f"{len(DOCUMENTED)} documented shapes, {len(ROUTED)} with the server's own bill, {len(OVERBILLED)} with one above "
        f"the reservation, {len(ALLOWING_MORE)} that allow more, {len(UNTOLD)} that tell no bill, {len(FAILED)} that are no answer"
    )
    print(
        f"{told}: "
        + (
            f"{problems} DO NOT HOLD"
            if problems
            else "recorded is never less than billed, and equal where documented"
        )
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

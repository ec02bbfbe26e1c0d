"""Drafts in the thinking of a model are not orders."""

import json
from pathlib import Path

import pytest

from agentic_trading.llm.result import Stage
from tests.cases.answering import PUBLIC, asked


def _body(text: str) -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 200, "completion_tokens": 50, "total_tokens": 250}
    return json.dumps({"id": "c-1", "model": "quant-7b", "choices": [choice], "usage": usage}).encode()


async def test_draft_before_closing_mark_is_refused(tmp_path: Path) -> None:
    text = (PUBLIC / "o01_draft_in_thoughts.txt").read_text(encoding="utf-8")

    answer = await asked(_body(text), tmp_path)

    assert answer.result.reading is not None
    assert (answer.result.success, answer.result.reading.verdict) == (False, Stage.JSON_PARSE)
    assert answer.result.raw_output == text


@pytest.mark.parametrize("mark", ["</think>", "[/THINK]", "<|channel|>final<|message|>", "assistantfinal"])
async def test_order_after_thinking_is_accepted(tmp_path: Path, mark: str) -> None:
    draft, order = '{"side": "SELL", "qty": 2}', '{"side": "BUY", "qty": 1}'

    answer = await asked(_body(f"First {draft}, then not.{mark}\n{order}"), tmp_path)

    assert (answer.result.success, answer.result.parsed_output) == (True, {"side": "BUY", "qty": 1})

"""TensorZero, embedded: one completion from the server at `HTTP_STUB`, without a rule on what may be spent and without a record."""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from tensorzero import AsyncTensorZeroGateway

from benchmarks.peers.question import ANSWER, INSTRUCTIONS, QUESTION
from benchmarks.peers.rounds import Round, answer_rounds, asked_at_once

CONFIG = """
[gateway]
observability.enabled = false

[models.bench]
routing = ["stub"]

[models.bench.providers.stub]
type = "openai"
api_base = "{address}/v1"
model_name = "bench-1"
api_key_location = "none"
"""


async def call(callers: int, count: int) -> Round:
    """Ask `count` times, `callers` at once; the text of the answer is taken as it comes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tensorzero.toml"
        path.write_text(CONFIG.format(address=os.environ["HTTP_STUB"]), encoding="utf-8")
        gateway = await AsyncTensorZeroGateway.build_embedded(config_file=str(path))

    async def ask() -> bool:
        answer = await gateway.inference(
            model_name="bench",
            input={"system": INSTRUCTIONS, "messages": [{"role": "user", "content": QUESTION}]},
            params={"chat_completion": {"max_tokens": 4_096}},
        )
        return answer.content[0].text == ANSWER

    return await asked_at_once(ask, callers, count)


if __name__ == "__main__":
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the gateway writes its log to the standard output, where the rounds are answered
    answer_rounds({f"call_{callers}": partial(call, callers) for callers in (1, 16)})

"""TensorZero, embedded: a rule of its `rate_limiting` on a month, counted in the server that all processes share.

Its gateway makes the call itself, so that each process has a door on the loopback that speaks the API which it calls, and
passes each call on to the stub that bills. The rule is on the cost; with `most`, its `default_cost` is what a call may cost
at most. With `tokens` the rule is on the tokens that the budget buys at the one price that there is here.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from tensorzero import AsyncTensorZeroGateway, TensorZeroError

from benchmarks.peers.load import LOADS, MODEL, NANO, NUSD_PER_TOKEN
from benchmarks.peers.paid import Provider
from benchmarks.peers.spending import Opening, Spender, Told, answer_calls

MOST = "most"
TOKENS = "tokens"
TOO_MANY_REQUESTS = 429
CONFIG = """
[gateway]
observability.enabled = false

[rate_limiting]
enabled = true
backend = "valkey"
{estimate}

[[rate_limiting.rules]]
{resource}_per_month = {{ capacity = {budget}, refill_rate = {budget} }}
scope = [{{ tag_key = "run", tag_value = "{run}" }}]
always = true

[models.{model}]
routing = ["stub"]

[models.{model}.providers.stub]
type = "openai"
api_base = "http://127.0.0.1:{port}/v1"
model_name = "{model}"
api_key_location = "none"
cost = [{{ pointer = "/usage/completion_tokens", cost_per_million = {price}, required = true }}]
"""


class Door:
    """Answers on the loopback as the API of chat completions does, after the stub has billed the call."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    async def open(self) -> int:
        """Listen; return the port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = server
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = json.loads(await reader.readexactly(int(length[1]) if length else 0))
                answer = json.dumps(await self._answer(body)).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                    % (len(answer), answer)
                )
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        load, call = re.findall(r"(\w+) (call-\d+)", json.dumps(body["messages"]))[0]
        tokens = await self._provider.call(load, call)
        message = {"role": "assistant", "content": "wait"}
        return {
            "id": call,
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1},
        }


def configuration(opening: Opening, port: int) -> str:
    """Return the configuration of a run: a budget that no other run has, and the price that everybody pays."""
    most = LOADS[opening.load].most_nusd
    in_tokens = opening.way == TOKENS
    return CONFIG.format(
        estimate=f"default_cost = {most / NANO}" if opening.way == MOST else "",
        resource="tokens" if in_tokens else "cost",
        budget=opening.budget_nusd // (NUSD_PER_TOKEN if in_tokens else NANO),
        run=opening.run,
        model=MODEL,
        port=port,
        price=NUSD_PER_TOKEN / 1000,
    )


def spender(gateway: AsyncTensorZeroGateway, opening: Opening) -> Spender:
    """Return what makes one call through the gateway."""
    load = LOADS[opening.load]

    async def spend(number: int) -> Told:
        try:
            answer = await gateway.inference(
                model_name=MODEL,
                input={"messages": [{"role": "user", "content": f"{load.name} call-{number}"}]},
                params={"chat_completion": {"max_tokens": load.cap}},
                tags={"run": opening.run},
            )
        except TensorZeroError as e:
            if e.status_code == TOO_MANY_REQUESTS:
                return Told(number, "refused")
            raise
        return Told(number, "paid", answer.usage.output_tokens * NUSD_PER_TOKEN)

    return spend


async def spend_calls(url: str, port: int) -> None:
    """Make the calls that are asked for, run after run, each run with a gateway of its own."""
    door = await Door(Provider(port)).open()

    async def opened(opening: Opening) -> Spender:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tensorzero.toml"
            path.write_text(configuration(opening, door), encoding="utf-8")
            gateway = await AsyncTensorZeroGateway.build_embedded(config_file=str(path), valkey_url=url)
        return spender(gateway, opening)

    await answer_calls(opened)


if __name__ == "__main__":
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # the gateway writes its log to the standard output, where the answers are told
    asyncio.run(spend_calls(sys.argv[2], int(sys.argv[3])))

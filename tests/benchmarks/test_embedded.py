"""The benchmark of the embedded gateway measures calls that are answered, and names where they spend."""

import pytest

from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.worker.call_context import CallContext
from agentic_trading.worker.delivery import EnvelopeHandler
from agentic_trading.worker.runner import CallRunner
from benchmarks import embedded, embedded_ours
from benchmarks.peers.rounds import AT_ONCE, Round


@pytest.mark.parametrize("way", embedded_ours.WAYS)
async def test_each_way_gives_the_answer(way: str) -> None:
    assert (await embedded_ours.WAYS[way](AT_ONCE)).wrong == 0
    assert way in embedded.rows()


def test_a_step_begins_with_functions_that_there_are() -> None:
    begun = {function for _, functions in embedded_ours.STEPS for function in functions}
    classes = (GatewayClient, EnvelopeBuilder, CallContext, EnvelopeHandler, CallRunner)
    named = [
        function for function in begun if function.partition(".")[0] in {each.__name__ for each in classes}
    ]

    assert all(any(hasattr(each, name.partition(".")[2]) for each in classes) for name in named)
    assert len(named) >= len(classes)


def test_the_table_names_every_step_once() -> None:
    row = embedded.rows()["steps"]
    row.rounds = [Round(300, 300, 0, {"result": 100, "provider": 200})]

    table = embedded.steps_table(row)

    assert "| result | 33% | 100 |" in table
    assert table.count("\n") == len(embedded_ours.STEPS) + 3

"""The benchmark of the embedded gateway measures calls that are answered, judges their shares, and names where they spend."""

import os
from collections.abc import Iterator

import pytest

from agentic_trading.client.gateway import GatewayClient
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.worker.call_context import CallContext
from agentic_trading.worker.delivery import EnvelopeHandler
from agentic_trading.worker.runner import CallRunner
from benchmarks import embedded, embedded_ours
from benchmarks.call_path import Row
from benchmarks.gateways import GATEWAYS, Proxy
from benchmarks.http_stub import serving
from benchmarks.peers.contender import UnavailableError
from benchmarks.peers.rounds import AT_ONCE, Round


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Run the server; give its port."""
    with serving() as address:
        monkeypatch.setenv("HTTP_STUB", address)
        yield int(address.rpartition(":")[2])


def measured(of_sdk: float) -> dict[str, Row]:
    """Return the rows as if all of them cost the same, but for those of calls over HTTP, which cost so much of the SDK."""
    table = embedded.rows() | embedded.http_rows()
    for way, row in table.items():
        is_ours = way in embedded_ours.WAYS and way in embedded.http_rows()
        us = {"hop": 0.5, "reading": 2.6}.get(way, of_sdk if is_ours else 1.0)
        row.rounds = [Round(us, us, 0)]
    return table


@pytest.mark.soak
@pytest.mark.parametrize("way", embedded_ours.WAYS)
@pytest.mark.usefixtures("stub")
async def test_each_way_gives_the_answer(way: str) -> None:
    assert (await embedded_ours.WAYS[way](AT_ONCE)).wrong == 0
    assert way in embedded.rows() | embedded.http_rows()


def test_proxy_answers_and_is_measured(stub: int) -> None:
    round_ = Proxy(stub, os.getpid()).round("call_4", 40)

    assert round_.wrong == 0
    assert round_.wall_us > 0


def test_unavailable_proxy_is_reported() -> None:
    with pytest.raises(UnavailableError, match="it broke: "):
        Proxy(1, os.getpid()).round("call_1", 1)


def test_unavailable_gateway_is_listed_with_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UnavailableError) as e:
        embedded.start("bifrost")
    row = Row("Bifrost", "bifrost", "call_1", unavailable=e.value.reason)

    embedded.print_costs(measured(0.4) | {"bifrost_1": row})

    assert f"Bifrost{' ' * 43}  not measured: " in capsys.readouterr().out
    assert {row.contender for row in embedded.gateway_rows().values()} == {*GATEWAYS}


def test_sdk_share_is_printed_without_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert embedded.holds(measured(0.51))

    printed = capsys.readouterr().out
    assert "openai_group_16: goal 0.50 of openai_sdk_16 (not judged): 0.51, not met" in printed
    assert "DOES NOT HOLD" not in printed


@pytest.mark.parametrize("way", [way for way, _, _ in embedded.PROMISES])
def test_each_broken_promise_fails_the_run(way: str) -> None:
    table = measured(0.4)
    table[way].rounds = [Round(9.0, 9.0, 0)]

    assert not embedded.holds(table)


def test_unavailable_sdk_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    table = measured(0.51)
    for way, row in table.items():
        row.unavailable = "cannot be installed" if "_sdk_" in way else ""

    assert embedded.holds(table)
    assert "_sdk_" not in capsys.readouterr().out


def test_wrong_answer_fails_the_run() -> None:
    table = measured(0.4)
    table["openai_group_1"].rounds = [Round(0.4, 0.4, 1)]

    assert not embedded.holds(table)


def test_step_functions_exist() -> None:
    begun = {function for _, functions in embedded_ours.STEPS for function in functions}
    classes = (GatewayClient, EnvelopeBuilder, CallContext, EnvelopeHandler, CallRunner)
    named = [
        function for function in begun if function.partition(".")[0] in {each.__name__ for each in classes}
    ]

    assert all(any(hasattr(each, name.partition(".")[2]) for each in classes) for name in named)
    assert len(named) >= len(classes)


def test_steps_table_lists_every_step() -> None:
    row = embedded.rows()["steps"]
    row.rounds = [Round(300, 300, 0, {"result": 100, "provider": 200})]

    table = embedded.steps_table(row)

    assert "| result | 33% | 100 |" in table
    assert table.count("\n") == len(embedded_ours.STEPS) + 3

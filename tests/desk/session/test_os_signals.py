"""The first SIGINT or SIGTERM is an orderly end; a second one of the same kind ends the program."""

import asyncio
import signal
from pathlib import Path
from threading import Thread

import pytest
from structlog.testing import capture_logs

from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import stop_on_signals
from agentic_trading.desk.session.trading_session import TradingSession
from tests.flows.sessions import ran


class Aborted(TradingSession):
    """A session that only notes how often it was stopped."""

    def __init__(self) -> None:
        self.stops = 0
        self.was_stopped = asyncio.Event()

    def stop(self) -> None:
        self.stops += 1
        self.was_stopped.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_first_signal_stops_session(number: signal.Signals) -> None:
    session = Aborted()

    with stop_on_signals() as signals, capture_logs() as logs:
        signals.hold(session)
        came_before = signals.came
        signal.raise_signal(number)
        await session.was_stopped.wait()

    assert (came_before, signals.came, session.stops) == (False, True, 1)
    assert [entry["event"] for entry in logs] == [
        "stopping after the calls in flight. Send the same signal again to stop immediately"
    ]


async def test_second_signal_ends_program() -> None:
    session = Aborted()

    with stop_on_signals() as signals:
        signals.hold(session)
        signal.raise_signal(signal.SIGINT)
        await session.was_stopped.wait()

        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    assert session.stops == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_early_signal_cancels_task_in_loop(
    number: signal.Signals,
) -> None:
    with stop_on_signals() as signals:
        signal.raise_signal(number)
        came_at_once = (
            signals.came
        )  # a cancellation between two steps of the loop could hit any of its callbacks
        with pytest.raises(asyncio.CancelledError):
            await asyncio.Event().wait()

    assert (came_at_once, signals.came) == (False, True)


async def test_signal_handler_is_restored_afterwards() -> None:
    with stop_on_signals():
        pass

    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_session_runs_on_other_thread(tmp_path: Path) -> None:
    reports: list[RunReport] = []

    def run_there() -> None:
        reports.append(asyncio.run(ran(tmp_path, data=("btcusdt-5m",), bars=5)))

    thread = Thread(target=run_there)
    thread.start()
    thread.join()

    assert [report.data[0].bars for report in reports] == [5]

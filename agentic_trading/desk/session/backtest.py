"""Run a backtest in code, on data frames or on files."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

from agentic_trading.cancellation import run_async
from agentic_trading.desk.agents.agent import Agent
from agentic_trading.desk.session.agents import OwnAgent, named_agent, own_agent
from agentic_trading.desk.session.feeds import FRAME, BarSource, is_symbol
from agentic_trading.desk.session.options import RunOptions, load_run_config, warm_up_bars
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.operate.session_folder import DataSource
from agentic_trading.platform.errors import OptionError


def run_backtest(
    agent: str | type[Agent],
    data: str | Sequence[str] | Mapping[str, object],
    *,
    out: Path | str,
    agent_config: Path | Mapping[str, Any] | None = None,
    timeframe: str = "",
    bars: int | None = None,
    provider: str = "rules",
    config: Path | None = None,
    record: bool = False,
    budget_usd: Decimal | None = None,
    resume: bool = False,
) -> RunReport:
    """Run a backtest as `agentic-trading run` does, and return the report of `run --json`.

    The folder has the bars, so that `replay run`, `report` and `trace` work on it without the frames. The call
    returns after the run has ended, also in a notebook. If Ctrl-C ended it, the report is `interrupted`, and a
    notebook gets a `KeyboardInterrupt`.

    Args:
        agent: The class, or its import path such as `breakout:Breakout`. The working directory is searched
            too. A replay imports the class, so that it must be in a file.
        data: Data frames of pandas or polars by symbol, or the samples and files of `--data`.
        out: The folder of the session.
        agent_config: The settings of the agent, or a TOML file with them.
        timeframe: The length of the bars. Empty if it is found from the bars.
        bars: The maximum number of bars of each symbol.
        provider: The provider of every call: `rules` for the offline answers of the agent, or those of
            `--provider`.
        config: The configuration file, as in `--config`.
        record: Whether models may be asked over a network.
        budget_usd: The maximum cost of all calls. None for that of the configuration, else 5.
        resume: Whether to continue an interrupted run in `out`, as `--resume` does. Give the same arguments.

    Raises:
        OptionError: If an argument is not allowed.
        AgentFailedError: If a handler raised an error.
        TradingError: If the bars cannot be read, or the folder cannot be used.

    Example:
        report = run_backtest(Breakout, {"AAPL": frame}, out="runs/aapl")

    """
    frames = frame_sources(data) if isinstance(data, Mapping) else []
    names = tuple(each.data.name for each in frames) or ((data,) if isinstance(data, str) else tuple(data))
    own = _agent(agent, agent_config, names)
    options = RunOptions(
        config=load_run_config(config, provider=provider, mode="backtest"),
        provider=provider,
        data=names,
        out=Path(out),
        timeframe=timeframe,
        bars=bars,
        warm_up=warm_up_bars(names, own) if bars else 0,
        budget_usd=budget_usd,
        record=record,
        agent=own,
        resume=resume,
    )
    return _ran(run_session(options, on_progress=lambda _progress: None, frames=frames))


def _agent(
    agent: str | type[Agent], config: Path | Mapping[str, Any] | None, names: tuple[str, ...]
) -> OwnAgent | None:
    if isinstance(agent, str):
        return named_agent(agent, config, names)
    return own_agent(_path_of(agent), agent, config, sys.modules[agent.__module__])


def _path_of(agent: type[Agent]) -> str:
    """Return the import path of a class. Raises `OptionError` if it cannot be imported for a replay."""
    module = agent.__module__
    if module == "__main__":
        # A program is imported by the name of its file, because `__main__` of a replay is another program.
        main = sys.modules[module]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else ""
    if not module or "<locals>" in agent.__qualname__:
        raise OptionError(
            "agent", agent.__qualname__, "a class at the top of a file, because a replay imports it"
        )
    return f"{module}:{agent.__qualname__}"


def frame_sources(frames: Mapping[str, object]) -> list[BarSource]:
    """Return the data frames as sources, by symbol. Each becomes the text that its package writes as CSV.

    So a frame has the columns, the times and the numbers of a file, and numbers are the shortest ones that
    give the same floats.

    Raises:
        OptionError: If there is none, a key is not a symbol, or a value is not a data frame that has one level
            of columns.

    """
    if not frames:
        raise OptionError("data", "empty", "a data frame for each symbol, such as {'AAPL': frame}")
    found: list[BarSource] = []
    for symbol, frame in frames.items():
        if not is_symbol(symbol):
            allowed = "letters, digits, _ and ., at most 64 characters, such as BTCUSDT for BTC/USDT"
            raise OptionError("data", f"a frame of {symbol!r}", allowed)
        data = DataSource(name=f"{symbol}={FRAME}", symbol=symbol)
        found.append(BarSource(data, None, _lines_of(symbol, frame)))
    return found


def _lines_of(symbol: str, frame: Any) -> Sequence[bytes]:
    # By name, because an import of pandas or polars would need the package, and take a second.
    kinds = {(each.__module__.partition(".")[0], each.__name__) for each in type(frame).__mro__}
    if ("polars", "DataFrame") in kinds:
        text = frame.write_csv()
    elif ("pandas", "DataFrame") in kinds:
        text = _of_pandas(symbol, frame)
    else:
        was = f"a {type(frame).__module__}.{type(frame).__qualname__} for {symbol}"
        raise OptionError("data", was, "a DataFrame of pandas or polars")
    return [line.encode() for line in text.split("\n")]


def _of_pandas(symbol: str, frame: Any) -> str:
    if frame.columns.nlevels > 1:
        was = f"a frame for {symbol} with {frame.columns.nlevels} levels of columns"
        raise OptionError("data", was, "one level, such as frame.droplevel(1, axis=1)")
    # The number of the row is no column of the frame, and would be reported as one that is not read.
    is_numbered = type(frame.index).__name__ == "RangeIndex" and frame.index.name is None
    text: str = frame.to_csv(index=not is_numbered, lineterminator="\n")
    return text


def _ran(run: Coroutine[Any, Any, RunReport]) -> RunReport:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run_async(run)
    stops: list[Callable[[], object]] = []

    async def stoppable() -> RunReport:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            stops.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await run

    # In a thread of its own, because a notebook has an event loop, which cannot run a second one inside.
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(run_async, stoppable())
        try:
            return ended.result()
        except KeyboardInterrupt:
            # Otherwise the run would go on, because only the main thread gets the signal.
            for stop in stops:
                stop()
            raise

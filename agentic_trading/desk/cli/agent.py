"""Write a new agent, and check one."""

import keyword
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.options import AsJson
from agentic_trading.cli.output import command_line, facts, heading, paragraph, print_table, show_json
from agentic_trading.cli.settings import configured
from agentic_trading.desk.cli.run import TimeframeOption, names_in
from agentic_trading.desk.session.agent_check import (
    DEFAULT_DATA,
    AgentCheck,
    CheckRow,
    check_agent,
    source_file,
)
from agentic_trading.platform.errors import OptionError

app = typer.Typer(help="Write and check an agent of your own.", no_args_is_help=True)

AgentPath = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:CLASS",
        help="Your own agent, from an installed package or the working directory. Its module is run.",
    ),
]
AgentConfig = Annotated[
    Path | None,
    typer.Option("--agent-config", metavar="FILE", help="TOML file with the settings of the agent."),
]
CheckedData = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="NAMES",
        help="Market data: samples or CSV files, separated by commas, one for each symbol. Write SYMBOL= before a source to set its symbol.",
    ),
]
Bars = Annotated[
    int | None,
    typer.Option("--bars", metavar="N", min=1, help="Maximum number of bars of each symbol. [default: all]"),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the agent, such as mean_reversion.")]
Folder = Annotated[
    Path, typer.Option("--folder", metavar="DIR", help="Folder of the two files. It is created if needed.")
]

_AGENT: Final = '''"""An agent that asks a model at each close above the average."""

from agentic_trading.desk import Agent, Bar, Desk
from pydantic import BaseModel, Field


class Verdict(BaseModel):
    """The answer of the model."""

    buy: bool
    why: str = Field(max_length=200)


class {agent}(Agent):
    """Buys above the average of the last closes, if the model agrees."""

    timeframe = "1h"
    lookback = 20

    async def on_bar(self, desk: Desk, bar: Bar) -> None:
        """Ask at a close above the average, and request an entry."""
        bars, atr = desk.history(n=self.lookback), desk.atr()
        if len(bars) < self.lookback or atr is None or desk.position():
            return
        if bar.close <= sum(each.close for each in bars) / len(bars):
            return
        evidence = {{"bars": bars[-12:]}}
        answer = await desk.decide("Buy now?", output=Verdict, evidence=evidence)
        if answer and answer.output and answer.output.buy:
            stop, target = bar.close - 2 * atr, bar.close + 3 * atr
            desk.buy(risk_pct=1, stop=stop, target=target)
'''

_TEST: Final = '''"""Tests of the agent, without a network and without a model."""

from agentic_trading.desk import check_agent


def test_agent_trades_and_repeats_its_decisions() -> None:
    check = check_agent("{module}:{agent}", data="{data}", bars=600)

    assert check.faults == []
    assert check.fills > 0
'''

_TAKEN: Final = frozenset({"Agent", "Bar", "BaseModel", "Desk", "Field", "Verdict"})
"""The names that a new agent imports or defines."""

_WORDS: Final = {True: "ok", False: "FAILED", None: "not run"}


@app.command("new", short_help="Write an agent and its test.")
def new_command(name: Name, *, folder: Folder = Path()) -> None:
    """Write an agent of 20 lines and its test. Existing files are not overwritten."""
    module, agent = _names_of(name)
    texts = {
        folder / f"{module}.py": _AGENT.format(agent=agent),
        folder / f"test_{module}.py": _TEST.format(module=module, agent=agent, data=DEFAULT_DATA),
    }
    for path in texts:
        if path.exists():
            raise OptionError("NAME", f"{name}, and {path} exists", "a name without files in this folder")
    _refuse_installed(name, module)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as e:
        raise OptionError("--folder", f"{folder} ({e.strerror})", "a folder that can be written") from e
    print_table(
        facts([("agent", str(path)) if path.stem == module else ("test", str(path)) for path in texts])
    )
    # Because the module is looked for in the working directory.
    moves = [] if folder == Path() else [f"cd {folder}"]
    commands = (*moves, f"agentic-trading agent check {module}:{agent}", f"python -m pytest test_{module}.py")
    print_table(heading("Next"), *map(command_line, commands))


@app.command("check", short_help="Check that an agent repeats its decisions and sees no later bar.")
def check_command(
    agent: AgentPath,
    *,
    agent_config: AgentConfig = None,
    data: CheckedData = DEFAULT_DATA,
    timeframe: TimeframeOption = "",
    bars: Bars = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent three times and replay it three times, with its offline answers and without a model.

    Its decisions must be the same in a second run, in replays with 1 and 8 workers and in another process,
    and in a run over the first half of the bars. The report names the files, networks, processes, clocks and random sources that
    its code uses. Exit code 1 means that a check failed.
    """
    configured()
    result = check_agent(
        agent, data=names_in(data), timeframe=timeframe, bars=bars, agent_config=agent_config
    )
    if as_json:
        show_json(result)
    else:
        print_table(*_report_text(result))
    if not result.passed:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _names_of(name: str) -> tuple[str, str]:
    """Return the names of the module and of the class. Raises `OptionError` for an unusable name."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-_ ]+", " ", name).split()
    module, agent = "_".join(words).lower(), "".join(word[:1].upper() + word[1:] for word in words)
    is_usable = re.fullmatch(r"[a-z][a-z0-9_]*", module) and not keyword.iskeyword(module)
    if not is_usable or keyword.iskeyword(agent) or agent in _TAKEN:
        allowed = (
            f"words of ASCII letters and digits, such as mean_reversion, but not {', '.join(sorted(_TAKEN))}"
        )
        raise OptionError("NAME", repr(name), allowed)
    return module, agent


def _refuse_installed(name: str, module: str) -> None:
    # Installed modules are found first, so that the new one could not be imported.
    if module in sys.stdlib_module_names or source_file(module) is not None:
        raise OptionError("NAME", f"{name}, and a module {module} is installed", "another name")


def _report_text(check: AgentCheck) -> Iterator[RenderableType]:
    """Yield the parts of the text: a line for each check, and below it the faults."""
    yield heading(f"{check.agent} on {', '.join(check.data)}")
    yield facts(_lines(check.checks))
    for note in check.notes:
        yield paragraph(f"Note: {note}.")
    yield paragraph(f"Not seen: {'; '.join(check.not_seen)}.")
    failed = sum(row.passed is False for row in check.checks)
    yield heading("All checks passed" if check.passed else f"{failed} of {len(check.checks)} checks failed")


def _lines(rows: tuple[CheckRow, ...]) -> Iterator[tuple[str, str]]:
    for row in rows:
        yield row.name, f"{_WORDS[row.passed]}: {row.detail}"
        if row.difference is not None:
            yield "", f"first difference: {row.difference}"
        yield from (("", place) for place in row.places)

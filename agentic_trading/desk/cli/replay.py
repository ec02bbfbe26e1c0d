"""Replay recorded sessions without a network."""

from pathlib import Path
from typing import Annotated, Any

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say
from agentic_trading.cli.options import AsJson

app = typer.Typer(help="Replay recorded sessions without a network.", no_args_is_help=True)

Session = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER", help="Folder of a session of `run`, of a gateway in a program, or of `serve`."
    ),
]
RunNumber = Annotated[
    int | None,
    typer.Option("--run", metavar="N", min=1, help="Number of the run to replay. [default: the last run]"),
]
AllowIncomplete = Annotated[
    bool,
    typer.Option(
        "--allow-incomplete", help="Replay the intact lines of a broken or truncated log, or of a killed run."
    ),
]
Workers = Annotated[
    int, typer.Option("--workers", metavar="N", min=1, max=256, help="Maximum number of concurrent calls.")
]


Command = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- COMMAND]", help="Your program, to run on the record of a gateway or of `serve`."
    ),
]
AgentPath = Annotated[
    str,
    typer.Option(
        "--agent",
        metavar="MODULE:CLASS",
        help="The agent that made the run, if it was your own. Its module is run.",
    ),
]
FamilyName = Annotated[
    str,
    typer.Option(
        "--family", metavar="NAME", help="The strategy family of the run, if it is of an installed package."
    ),
]
ReplayedKey = Annotated[
    str,
    typer.Option(
        "--key",
        metavar="NAME",
        help="With COMMAND: replay and compare only calls of this API key of `serve`.",
    ),
]
VolatileText = Annotated[
    list[str] | None,
    typer.Option(
        "--volatile",
        metavar="REGEX",
        help="With COMMAND: a text in requests of SDKs that differs between runs. A replay also matches requests "
        "without it. Repeatable.",
    ),
]


@app.callback()
def replay_group() -> None:
    """Make `run` a subcommand of `replay`."""
    # Without a callback `replay run` would be `replay`, because Typer merges a group with its only command.


@app.command("run", short_help="Replay a run and compare the decision logs.")
def replay_run(
    session: Session,
    command: Command = None,
    *,
    run: RunNumber = None,
    agent: AgentPath = "",
    family: FamilyName = "",
    key: ReplayedKey = "",
    volatile: VolatileText = None,
    workers: Workers = 4,
    allow_incomplete: AllowIncomplete = False,
    as_json: AsJson = False,
) -> None:
    """Replay a run with its recorded answers, and compare the decision logs byte for byte.

    The replay writes no files, and the network is blocked. Exit code 1 means that the logs differ, and the
    first difference is printed. A broken or truncated log and changed bars are refused. A run of your own agent
    needs --agent again, and one of your own family --family, because a folder never chooses code.

    A folder of a gateway or of `serve` has no decision log. With -- COMMAND, your program is run again on its
    record, and each attempt is compared. Without a command, the record is checked.
    """
    from agentic_trading.audit.logs import logs_at
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.settings import configured
    from agentic_trading.desk.cli.summary import comparison
    from agentic_trading.desk.session.agents import load_agent
    from agentic_trading.desk.session.families import named_family
    from agentic_trading.desk.session.options import refuse_search
    from agentic_trading.desk.session.replay import replay
    from agentic_trading.operate.lines import printable
    from agentic_trading.operate.session_folder import SessionFolder
    from agentic_trading.platform.errors import OptionError

    if command or (logs_at(session) and not SessionFolder(session).manifest(1).exists()):
        # Only here, because it loads the HTTP server.
        from agentic_trading.cli.replay_folder import refuse_session_options, replay_folder

        refuse_search(session)
        refuse_session_options({"--run": run, "--agent": agent, "--family": family})
        replay_folder(
            session, command or (), key=key, volatile=volatile or (), allow_incomplete=allow_incomplete, as_json=as_json
        )  # fmt: skip
        return
    for option, value in {"--key": key, "--volatile": volatile}.items():
        if value:
            raise OptionError(option, "given with a session of `run`", f"{option} with the record of `serve`")
    configured()
    own = load_agent(agent) if agent else None
    terms: dict[str, Any] = {"agent": own, "family": named_family(family)}
    replaying = replay(session, run=run, workers=workers, allow_incomplete=allow_incomplete, **terms)
    report = run_async(replaying)
    for warning in report.warnings:
        say(f"Warning: {printable(warning)}", err=True)
    if as_json:
        show_json(report)
    else:
        print_table(comparison(report))
    if not report.identical:
        raise typer.Exit(ExitCode.FOUND_WRONG)

"""`agentic-trading worker`, which runs the calls on a bus, and `submit`, which publishes envelopes to it."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, end_within, say
from agentic_trading.cli.options import BusUrl, ConfigFile

CLOSES_WITHIN_S: Final = 60.0
"""Seconds to close a worker after its calls have ended. Each of its parts gives up after 30 seconds."""

WorkerLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The Redis of budgets and claims, redis://HOST:PORT.  [default: from the configuration]",
    ),
]
WorkerName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the worker, unique on the bus.  [default: from the configuration, or worker@HOST]",
    ),
]
LogFolder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Folder of logs. The worker writes to DIR/NAME.  [default: from the configuration, or AGENTIC_RUNS/workers]",
    ),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        help="Maximum calls in flight, and as many executions in addition.  [default: from the configuration]",
    ),
]
WorkflowList = Annotated[
    str | None,
    typer.Option(
        "--workflows",
        metavar="LIST",
        help="Comma-separated workflows to serve: execution, planning, analysis, general.  [default: from the configuration]",
    ),
]
TenantIds = Annotated[
    list[str] | None,
    typer.Option(
        "--tenant",
        metavar="ID",
        help="Serve only this tenant. Requires a bus.namespace. Can be repeated.  [default: from the configuration]",
    ),
]
ServedProviders = Annotated[
    list[str] | None,
    typer.Option("--provider", metavar="NAME", help="Also serve this provider. Can be repeated."),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--package", metavar="NAME", help="Also load all checks and rules of this package. Can be repeated."
    ),
]
WorkerMode = Annotated[
    Literal["backtest", "paper"] | None,
    typer.Option(
        "--mode",
        help="In a backtest, the current time is the as_of of the envelope.  [default: from the configuration]",
    ),
]
HttpAddress = Annotated[
    str,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Address of /livez, /readyz and /metrics. Port 0 selects a free port.",
    ),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        "--drain-s", metavar="S", min=0, help="Seconds that calls in flight may take to end after a signal."
    ),
]

EnvelopeFile = Annotated[
    str, typer.Argument(metavar="FILE", help="File with one JSON envelope per line, or - for standard input.")
]
WaitForAnswers = Annotated[
    bool, typer.Option("--wait", help="Wait for the answers, and print each outcome as a line of JSON.")
]
AtOnce = Annotated[
    int,
    typer.Option("--at-once", metavar="N", min=1, max=10_000, help="Maximum number of envelopes in flight."),
]
SignAs = Annotated[
    str | None,
    typer.Option(
        "--sign-as",
        metavar="NAME",
        help="The principal that signs the envelopes.  [default: from the configuration]",
    ),
]


def worker_command(
    *,
    config: ConfigFile = None,
    bus: BusUrl = None,
    ledger: WorkerLedger = None,
    name: WorkerName = None,
    store: LogFolder = None,
    concurrency: Concurrency = None,
    workflows: WorkflowList = None,
    tenant: TenantIds = None,
    provider: ServedProviders = None,
    package: Packages = None,
    mode: WorkerMode = None,
    http: HttpAddress = "127.0.0.1:9108",
    drain_s: DrainSeconds = 30.0,
) -> None:
    """Run the calls on a bus, record them and publish the answers, until SIGTERM or Ctrl-C.

    If a server is unreachable, the worker waits for it, and /readyz shows the reason. After a signal, the
    worker accepts no more envelopes and completes the calls in flight.
    """
    from agentic_trading.platform.status_pages import StartingProcess, StatusPages, status_server

    pages = StatusPages(StartingProcess("its modules and its configuration"))
    given = {
        "bus": bus,
        "ledger": ledger,
        "providers": provider or (),
        "tenants": tenant or (),
        "packages": package or (),
        "name": name,
        "folder": store,
        "concurrency": concurrency,
        "workflows": None if workflows is None else [word.strip() for word in workflows.split(",")],
        "mode": mode,
    }

    async def serve() -> None:
        async with status_server(
            pages, http
        ) as address:  # first, so that a health probe gets an answer during the start
            say(f"health: {address}/readyz", err=True)
            process = await asyncio.to_thread(_loaded_worker, config, drain_s, given)
            pages.shown = StartingProcess("the files and adapters of its configuration")
            await _run_worker(process, pages)

    run_async(serve())


def _loaded_worker(config: Path | None, drain_s: float, given: dict[str, Any]) -> Any:
    """Return the worker of a configuration. Blocks, because the import of its modules is slow."""
    from agentic_trading.cli.settings import configure_logging, start
    from agentic_trading.platform.worker import WorkerProcess, worker_config

    settings = start()
    loaded = worker_config(config, runs=settings.runs, **given)
    configure_logging(settings.log_level, settings.log_format, loaded.redaction)
    return WorkerProcess(loaded, drain_s)


async def _run_worker(process: Any, pages: Any) -> None:
    """Check the configuration of a worker and run it.

    After a signal, the process is ended once `drain_s` and `CLOSES_WITHIN_S` have passed.
    """
    from agentic_trading.platform.check import check_platform
    from agentic_trading.platform.errors import ConfigError

    loaded = process.config
    if problems := await check_platform(loaded):
        raise ConfigError(problems)
    pages.shown = process
    say(f"{loaded.name}: log in {loaded.folder}/{loaded.name}", err=True)
    checks = ", ".join(f"{schema_id} ({package})" for schema_id, package in loaded.checks.items())
    say(f"{loaded.name}: schemas with a check: {checks or 'none'}", err=True)
    with ExitStack() as stack:

        def limit_the_end() -> None:
            stack.callback(end_within(process.drain_s + CLOSES_WITHIN_S, ExitCode.INTERRUPTED).cancel)

        await process.run(
            lambda: say(f"{loaded.name} serves {', '.join(loaded.providers)}", err=True), limit_the_end
        )
    say(f"{loaded.name} has stopped", err=True)


def submit_command(
    file: EnvelopeFile,
    *,
    config: ConfigFile = None,
    bus: BusUrl = None,
    sign_as: SignAs = None,
    wait: WaitForAnswers = False,
    at_once: AtOnce = 64,
) -> None:
    """Publish envelopes to a bus.

    A line that is not an envelope is reported and skipped, and the exit code is then 1. Without --wait, the
    outcomes are only in the logs of the workers. An envelope that was submitted before does not run again.
    """
    from agentic_trading.cli.settings import configure_logging, start
    from agentic_trading.operate.envelope_lines import SubmissionCounts, file_lines, submit_lines
    from agentic_trading.platform.settings import load_config

    settings = start()
    given = {"bus": None if bus is None else {"url": bus}, "sign_as": sign_as}
    loaded = load_config(config, flags={"bus": "--bus", "sign_as": "--sign-as"}, **given)
    configure_logging(settings.log_level, settings.log_format, loaded.redaction)
    counts = SubmissionCounts()
    work = submit_lines(
        loaded, file_lines(file), counts, at_once=at_once, say=lambda text: say(text, err=True),
        answered=say if wait else None,
    )  # fmt: skip
    try:
        run_async(work)
    finally:
        say(counts.text(), err=True)
    if counts.wrong:
        raise typer.Exit(ExitCode.FOUND_WRONG)

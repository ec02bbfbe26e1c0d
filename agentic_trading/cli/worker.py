"""`agentic-trading worker`, which takes envelopes from a shared bus and answers them, and `submit`, which puts some there."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, end_within, say
from agentic_trading.cli.options import BusUrl, ConfigFile

CLOSES_WITHIN_S: Final = 60.0
"""How long a worker may take to close after its calls have ended: each of its parts gives up after 30 seconds."""

WorkerLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The Redis of budgets and claims, redis://HOST:PORT; if left out, the configuration's.",
    ),
]
WorkerName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Its name, which no other worker of the bus has; if left out, the configuration's, else worker@HOST.",
    ),
]
LogFolder = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Its log goes to DIR/NAME; if left out, below AGENTIC_RUNS."),
]
Concurrency = Annotated[
    int | None,
    typer.Option("--concurrency", metavar="N", help="How many calls at once, and as many executions."),
]
WorkflowList = Annotated[
    str | None,
    typer.Option(
        "--workflows", metavar="LIST", help="execution, planning, analysis, general; with commas between."
    ),
]
TenantIds = Annotated[
    list[str] | None,
    typer.Option(
        "--tenant", metavar="ID", help="Serve this tenant alone; may be repeated. Needs a bus.namespace."
    ),
]
ServedProviders = Annotated[
    list[str] | None,
    typer.Option("--provider", metavar="NAME", help="Serve this provider, too; may be repeated."),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--package", metavar="NAME", help="Also load all checks and rules of this package; may be repeated."
    ),
]
WorkerMode = Annotated[
    Literal["backtest", "paper"] | None,
    typer.Option("--mode", help="In a backtest deadlines go by the moment that an envelope speaks of."),
]
HttpAddress = Annotated[
    str,
    typer.Option("--http", metavar="HOST:PORT", help="Where /livez, /readyz and /metrics are; port 0: any."),
]
DrainSeconds = Annotated[
    float,
    typer.Option("--drain-s", metavar="S", min=0, help="How long calls may take to end after a signal."),
]

EnvelopeFile = Annotated[
    str, typer.Argument(metavar="FILE", help="Envelopes as JSON, one a line; - is standard input.")
]
WaitForAnswers = Annotated[
    bool, typer.Option("--wait", help="Wait for each answer and print its outcome as a line of JSON.")
]
AtOnce = Annotated[int, typer.Option("--at-once", metavar="N", min=1, max=10_000, help="How many at once.")]
SignAs = Annotated[
    str | None,
    typer.Option("--sign-as", metavar="NAME", help="The principal; if left out, the configuration's."),
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
    """Take envelopes from a bus, make the calls, record and answer them, until SIGTERM or Ctrl-C.

    It waits for servers that are away; /readyz says for what. After a signal it takes nothing more and ends what it has begun.
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
        async with status_server(pages, http) as address:  # first of all, so that a probe gets an answer
            say(f"health: {address}/readyz", err=True)
            process = await asyncio.to_thread(_loaded_worker, config, drain_s, given)
            pages.shown = StartingProcess("the files and adapters of its configuration")
            await _run_worker(process, pages)

    run_async(serve())


def _loaded_worker(config: Path | None, drain_s: float, given: dict[str, Any]) -> Any:
    """Return the worker of a configuration. Blocks: its modules take longer to import than all else."""
    from agentic_trading.cli.settings import configure_logging, start
    from agentic_trading.platform.worker import WorkerProcess, worker_config

    settings = start()
    loaded = worker_config(config, runs=settings.runs, **given)
    configure_logging(settings.log_level, settings.log_format, loaded.redaction)
    return WorkerProcess(loaded, drain_s)


async def _run_worker(process: Any, pages: Any) -> None:
    """Check a worker's configuration and run it; after a signal it has `CLOSES_WITHIN_S` beside its time to drain."""
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
    say(f"{loaded.name} has ended", err=True)


def submit_command(
    file: EnvelopeFile,
    *,
    config: ConfigFile = None,
    bus: BusUrl = None,
    sign_as: SignAs = None,
    wait: WaitForAnswers = False,
    at_once: AtOnce = 64,
) -> None:
    """Put envelopes on a bus. A line that is no envelope is named and left out; exit 1 if there was one.

    Without --wait nothing answers; what became of an envelope is in the workers' logs. An envelope that is submitted again is not run again.
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

"""`agentic-trading archive`: archive the records of all workers in one log, and check it."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.options import AsJson, BusUrl, ConfigFile, loaded_with_bus

app = typer.Typer()

ARCHIVER: Final = "archiver"
"""The name of every archiver on a bus, so that a second archiver replaces the first."""

AHEAD: Final = 1024
"""Lines to fetch ahead, so that lines of many traces share one wait for the disk."""

ArchiveFolder = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Folder of the archive, created if missing.  [required]"),
]
CheckedFolder = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="Folder of the archive.  [required]")
]
UntilEnd = Annotated[bool, typer.Option("--until-end", help="Stop at the end of the topic.")]


@app.callback(invoke_without_command=True)
def archive_stream(
    context: typer.Context,
    *,
    bus: BusUrl = None,
    store: ArchiveFolder = None,
    until_end: UntilEnd = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Archive the records of all workers on a bus in one log.

    Runs until SIGINT or SIGTERM, and then prints counts. With --until-end, it stops at the end of every
    partition of the topic, and fails if another reader has some of the partitions.
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from agentic_trading.cli.output import show_json
    from agentic_trading.operate.choices import pluralize

    folder, loaded = _required(store), loaded_with_bus(config, bus)
    done = _archived(loaded, folder, until_end=until_end)
    if not done.logs and not loaded.bus.is_on_kafka:
        note = "Note: no worker publishes its log on this bus. On Redis, workers do so if ack_after is set."
        say(note, err=True)
    if as_json:
        show_json({**asdict(done), "known": done.known})
        return
    new, came = pluralize(done.records, "new record"), pluralize(done.messages, "message")
    letters = pluralize(done.dead_letters, "dead letter")
    say(
        f"Archived {new} from {came} ({done.known} known already, {letters}). The archive has {pluralize(done.logs, 'log')}."
    )


@app.command("check", short_help="Check whether an archive is complete.")
def check_archived(
    *,
    store: CheckedFolder = None,
    bus: BusUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check whether an archive is complete.

    If not, missing, wrong and cut records are listed, and the exit code is 1.

    With --bus or --config, the archive is also compared with its last head on the bus.
    """
    from agentic_trading.cli.output import show_json
    from agentic_trading.cli.settings import start
    from agentic_trading.operate.choices import pluralize

    folder = _required(store)
    start()
    loaded = None if bus is None and config is None else loaded_with_bus(config, bus)
    found = _checked(loaded, folder)
    if as_json:
        show_json(found.model_dump(mode="json"))
    else:
        say("incomplete" if found.findings else "whole")
        say(f"{pluralize(found.lines, 'line')} from {pluralize(len(found.logs), 'log')} in {folder}")
        for finding in found.findings:
            say(f"{f'log {finding.log_id}: ' if finding.log_id else ''}{finding.reason}")
        for note in found.notes:
            say(f"Note: {note}")
    if found.findings:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _required(store: Path | None) -> Path:
    if store is None:
        stop(ExitCode.BAD_INPUT, "--store is missing. Use --store DIR for the folder of the archive.")
    return store


def _archived(config: Any, folder: Path, *, until_end: bool) -> Any:
    """Archive the records on a bus, and return a summary."""
    from agentic_trading.audit.archive import opened_archive
    from agentic_trading.cancellation import on_first_signal
    from agentic_trading.clock import SystemClock
    from agentic_trading.platform import port_adapters

    async def archive() -> Any:
        async with AsyncExitStack() as stack:
            log = await stack.enter_async_context(aclosing(await port_adapters.opened_log(folder, config)))
            broker = await asyncio.to_thread(port_adapters.broker_of, config, buffer=AHEAD)
            await stack.enter_async_context(aclosing(broker))
            archiver = await opened_archive(log, folder, broker, SystemClock())
            with on_first_signal(archiver.stop):
                return await archiver.run(until_end=until_end)

    # Relaxed, because the archiver itself waits for the disk. One name, so that after a kill the next archiver gets the
    # partitions at once.
    config = config.model_copy(update={"durability": "relaxed", "name": ARCHIVER})
    return run_async(archive())


def _checked(config: Any, folder: Path) -> Any:
    """Check an archive. With a configuration, also check it against the heads on the bus."""
    from agentic_trading.audit.verify import check_archive
    from agentic_trading.bus.log_stream import LogHead
    from agentic_trading.bus.topic import HEADS
    from agentic_trading.llm.store import LOG_NAME
    from agentic_trading.platform import port_adapters
    from agentic_trading.platform.port_adapters import records_of

    async def heads() -> list[Any]:
        found = []
        broker = await asyncio.to_thread(port_adapters.broker_of, config)
        async with aclosing(broker), aclosing(broker.scan(HEADS)) as deliveries:
            async for delivery in deliveries:
                try:
                    found.append(LogHead.from_wire(delivery.message.value))
                except ValueError:
                    say(
                        f"Warning: message {delivery.position} of {HEADS.name} is not a head and was skipped",
                        err=True,
                    )
        return found

    async def check() -> Any:
        on_bus = None if config is None else await heads()
        async with aclosing(records_of(folder / LOG_NAME)) as records:
            return await check_archive(records, folder, on_bus)

    return run_async(check())

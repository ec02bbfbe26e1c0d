"""`agentic-trading archive`: the records of all workers of a bus in one log, and whether any are missing."""

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
"""The name of every archiver on a bus: a second one takes the place of the first."""

AHEAD: Final = 1024
"""Lines that are fetched ahead: of each trace one at a time is kept, so that many make few waits for the disk."""

ArchiveFolder = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="The folder of the archive, made if need be.  [required]"),
]
CheckedFolder = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="The folder of the archive.  [required]")
]
UntilEnd = Annotated[
    bool, typer.Option("--until-end", help="Stop at the end of every partition of the topic.")
]


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
    """Archive the records of all workers of a bus in one log, and check it.

    It runs until SIGINT or SIGTERM, and prints what was done. With --until-end it stops at the end of every partition of the
    topic, and fails if another reader has some of them.
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from agentic_trading.cli.output import show_json
    from agentic_trading.operate.choices import pluralize

    folder, loaded = _required(store), loaded_with_bus(config, bus)
    done = _archived(loaded, folder, until_end=until_end)
    if not done.logs and not loaded.bus.is_on_kafka:
        note = "note: no worker sends its log here; on a Redis they do where ack_after is set"
        say(note, err=True)
    if as_json:
        show_json({**asdict(done), "known": done.known})
        return
    new, came = pluralize(done.records, "new record"), pluralize(done.messages, "message")
    letters = pluralize(done.dead_letters, "dead letter")
    say(
        f"{new} of {came}; {done.known} known already; {letters}; the archive knows {pluralize(done.logs, 'log')}"
    )


@app.command("check", short_help="Say whether an archive is whole.")
def check_archived(
    *,
    store: CheckedFolder = None,
    bus: BusUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Say whether an archive is whole; exit 1 names what is missing, wrong or cut.

    With --bus or --config the archive is also held against its last head on the bus.
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
        say(f"{pluralize(found.lines, 'line')} of {pluralize(len(found.logs), 'log')} in {folder}")
        for finding in found.findings:
            say(f"{f'log {finding.log_id}: ' if finding.log_id else ''}{finding.reason}")
        for note in found.notes:
            say(f"note: {note}")
    if found.findings:
        raise typer.Exit(ExitCode.FOUND_WRONG)


def _required(store: Path | None) -> Path:
    if store is None:
        stop(ExitCode.BAD_INPUT, "--store is left out; allowed: the folder of the archive")
    return store


def _archived(config: Any, folder: Path, *, until_end: bool) -> Any:
    """Archive what is on a bus, and return what was done."""
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

    # The archiver itself waits for the disk; and under one name the next one has its partitions at once after a kill.
    config = config.model_copy(update={"durability": "relaxed", "name": ARCHIVER})
    return run_async(archive())


def _checked(config: Any, folder: Path) -> Any:
    """Check an archive, with a configuration also against the heads on its bus; what is no head there is passed over."""
    from agentic_trading.audit.verify import check_archive
    from agentic_trading.bus.log_stream import LogHead
    from agentic_trading.bus.topic import HEADS
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
                    say(f"Warning: message {delivery.position} of {HEADS.name} is no head", err=True)
        return found

    async def check() -> Any:
        on_bus = None if config is None else await heads()
        async with aclosing(records_of(folder / port_adapters.LOG_NAME)) as records:
            return await check_archive(records, folder, on_bus)

    return run_async(check())

"""`agentic-trading services`: a Kafka and a Redis of one's own for development, on loopback, in the background."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from agentic_trading.cli.exits import say
from agentic_trading.cli.options import AsJson

app = typer.Typer(help="A local Kafka and Redis for development: start, stop, status.", no_args_is_help=True)


class ServiceName(StrEnum):
    """What can be started here."""

    KAFKA = "kafka"
    REDIS = "redis"


ServiceNames = Annotated[
    list[ServiceName] | None, typer.Argument(metavar="[kafka|redis]...", help="Which; both if left out.")
]
ServicesFolder = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Where their data, logs and process ids stand.")
]
DEFAULT_FOLDER = Path("runs/services")


@app.command("start", short_help="Start what does not run, and print where it is.")
def start_services(
    names: ServiceNames = None, *, folder: ServicesFolder = DEFAULT_FOLDER, as_json: AsJson = False
) -> None:
    """Start what does not run, and print where it is, as settings of a shell.

    Kafka needs Java 17 and, the first time, Maven and about half a minute; Redis needs redis-server or valkey-server.
    """
    for name in names or ServiceName:
        service = _service(name, folder, prepared=True)
        if service.daemon.pid is None:
            say(f"starting {name} …", err=True)
            service.start()
    _show(names, folder, as_json=as_json)


@app.command("stop")
def stop_services(names: ServiceNames = None, *, folder: ServicesFolder = DEFAULT_FOLDER) -> None:
    """Stop what runs; its data are kept."""
    for name in names or ServiceName:
        ran = _service(name, folder).stop()
        say(f"{name} {'stopped' if ran else 'did not run'}", err=True)


@app.command("status")
def show_services(
    names: ServiceNames = None, *, folder: ServicesFolder = DEFAULT_FOLDER, as_json: AsJson = False
) -> None:
    """Print what runs, and where it is."""
    _show(names, folder, as_json=as_json)


def _service(name: ServiceName, folder: Path, *, prepared: bool = False) -> Any:
    """Return a service in its folder below `folder`; `prepared` if it is to be started."""
    from agentic_trading.services.local import CACHE, KafkaService, RedisService

    place = folder.absolute() / name
    if name is ServiceName.REDIS:
        return RedisService(place)
    return KafkaService.prepared(place) if prepared else KafkaService(place, CACHE)


def _show(names: list[ServiceName] | None, folder: Path, *, as_json: bool) -> None:
    from agentic_trading.cli.output import show_json

    found = {}
    for name in names or ServiceName:
        service = _service(name, folder)
        pid = service.daemon.pid
        address = None
        if pid is not None:
            address = service.url if name is ServiceName.REDIS else f"kafka://{service.bootstrap_servers}"
        found[name.value] = {"pid": pid, "address": address}
    if as_json:
        show_json(found)
        return
    variables = {"kafka": "AGENTIC_BUS__URL=", "redis": "AGENTIC_LEDGER_URL="}
    for found_name, state in found.items():
        if state["pid"] is None:
            say(f"# {found_name} does not run")
        else:
            say(f"{variables[found_name]}{state['address']}  # {found_name}, process id {state['pid']}")

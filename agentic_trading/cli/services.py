"""`agentic-trading services`: Kafka and Redis for development, in the background on loopback."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from agentic_trading.cli.exits import say
from agentic_trading.cli.options import AsJson

app = typer.Typer(help="Start and stop a local Kafka and Redis for development.", no_args_is_help=True)


class ServiceName(StrEnum):
    """A service that can be started."""

    KAFKA = "kafka"
    REDIS = "redis"


ServiceNames = Annotated[
    list[ServiceName] | None,
    typer.Argument(metavar="[kafka|redis]...", help="The services.  [default: both]"),
]
ServicesFolder = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Folder for their data, logs and process ids.")
]
DEFAULT_FOLDER = Path("runs/services")


@app.command("start", short_help="Start services and print their URLs.")
def start_services(
    names: ServiceNames = None, *, folder: ServicesFolder = DEFAULT_FOLDER, as_json: AsJson = False
) -> None:
    """Start services that are not running, and print all URLs as shell variables.

    Kafka needs Java 17. Its first start also needs Maven and takes about 30 seconds. Redis needs redis-server
    or valkey-server.
    """
    for name in names or ServiceName:
        service = _service(name, folder, prepared=True)
        if service.daemon.pid is None:
            say(f"Starting {name} …", err=True)
            service.start()
    _show(names, folder, as_json=as_json)


@app.command("stop")
def stop_services(names: ServiceNames = None, *, folder: ServicesFolder = DEFAULT_FOLDER) -> None:
    """Stop running services. Their data are kept."""
    for name in names or ServiceName:
        ran = _service(name, folder).stop()
        say(f"{name} {'stopped' if ran else 'was not running'}", err=True)


@app.command("status")
def show_services(
    names: ServiceNames = None, *, folder: ServicesFolder = DEFAULT_FOLDER, as_json: AsJson = False
) -> None:
    """Print which services are running, and their URLs."""
    _show(names, folder, as_json=as_json)


def _service(name: ServiceName, folder: Path, *, prepared: bool = False) -> Any:
    """Return a service in its subfolder of `folder`. Set `prepared` before a start."""
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
            say(f"# {found_name} is not running")
        else:
            say(f"{variables[found_name]}{state['address']}  # {found_name}, process id {state['pid']}")

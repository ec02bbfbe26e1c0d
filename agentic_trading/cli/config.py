"""`agentic-trading config` and `keys`: the configuration of a platform, and the keys of principals."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.options import AsJson, ConfigFile

app = typer.Typer(help="Show and check the configuration of a platform.", no_args_is_help=True)

keys_app = typer.Typer(help="Create keys that sign messages of principals.", no_args_is_help=True)


PrincipalName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the principal, or of its key in the policy.")
]
Folder = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="Folder of keys, the principals_folder of the configuration."),
]
Add = Annotated[bool, typer.Option("--add", help="Add a key to the existing ones, to rotate keys.")]


@app.command("show", short_help="Print all values and their sources.")
def show_config(*, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print all values of the configuration and their sources: a file, a variable, or the default."""
    from agentic_trading.cli.output import print_table, rows, show_json, table
    from agentic_trading.platform.settings import load_config, secret_variable

    loaded = load_config(config)
    values = loaded.public_values()
    places = dict(_places(values))
    keys = {
        name: secret_variable(row.secret_of(name))
        for name, row in loaded.providers.items()
        if loaded.secret_of(name) is not None
    }
    if as_json:
        origins = {place: loaded.origin_of(place) for place in places}
        show_json({"config": values, "origins": origins, "keys": keys, "config_sha256": loaded.config_sha256})
        return
    cells = [(place, _spelled(value), loaded.origin_of(place)) for place, value in places.items()]
    cells += [(f"providers.{name}, its key", "…", variable) for name, variable in keys.items()]
    print_table(rows(table("key", "value", "source"), cells))
    say(f"config_sha256 {loaded.config_sha256}", err=True)


@app.command("check", short_help="Check the configuration and everything it names.")
def check_config(*, config: ConfigFile = None) -> None:
    """Check the configuration, and load the adapters, tables, policy and keys that it names.

    Nothing is sent. If there are problems, all of them are printed, and the exit code is 2.
    """
    from agentic_trading.platform.check import check_platform
    from agentic_trading.platform.errors import ConfigError
    from agentic_trading.platform.settings import load_config

    loaded = load_config(config)
    problems = run_async(check_platform(loaded))
    if problems:
        stop(ExitCode.BAD_INPUT, str(ConfigError(problems)))
    served = ", ".join(loaded.providers) or "none"
    say(f"Configuration OK (providers: {served}; tenants: {', '.join(loaded.tenant_ids)})")


@keys_app.command("create", short_help="Create a random key in a new file.")
def create_key(*, name: PrincipalName, folder: Folder, add: Add = False) -> None:
    """Create a random key in a new file, DIR/NAME/1, which only its owner can read.

    With --add, the file has the next number. An existing file is never overwritten.
    """
    from agentic_trading.bus.signing import write_key

    say(f"Created key {write_key(folder, name, add=add)}")


def _places(values: Mapping[str, Any], *above: str) -> Iterator[tuple[str, Any]]:
    """Yield every value that is not a table, with its dotted key."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _places(value, *above, name)
        elif value != {}:
            yield ".".join((*above, name)), value


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(each["model"] if isinstance(each, Mapping) else str(each) for each in value) or "-"
    return "-" if value is None or value == "" else str(value)

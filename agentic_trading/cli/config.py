"""`agentic-trading config` and `keys`: what a platform is made from, whether it can be used, and the keys of principals."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.options import AsJson, ConfigFile

app = typer.Typer(
    help="The configuration of a platform: its values, and whether they hold.", no_args_is_help=True
)

keys_app = typer.Typer(help="The keys of principals, which sign messages.", no_args_is_help=True)


PrincipalName = Annotated[
    str, typer.Argument(metavar="NAME", help="The principal, or the key's name in the policy.")
]
Folder = Annotated[
    Path,
    typer.Option("--dir", metavar="DIR", help="The folder of keys: principals_folder of a configuration."),
]
Add = Annotated[
    bool, typer.Option("--add", help="Add the next key to those that there are, to exchange them.")
]


@app.command("show", short_help="Print every value and where it is from.")
def show_config(*, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Print every value of the configuration and where it is from: a file, a variable, or the default."""
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
    print_table(rows(table("value", "is", "from"), cells))
    say(f"config_sha256 {loaded.config_sha256}", err=True)


@app.command("check", short_help="Load everything that the configuration names.")
def check_config(*, config: ConfigFile = None) -> None:
    """Load everything that the configuration names: adapters, tables, policy, keys; exit 2 names all that is wrong."""
    from agentic_trading.platform.check import check_platform
    from agentic_trading.platform.errors import ConfigError
    from agentic_trading.platform.settings import load_config

    loaded = load_config(config)
    problems = run_async(check_platform(loaded))
    if problems:
        stop(ExitCode.BAD_INPUT, str(ConfigError(problems)))
    served = ", ".join(loaded.providers) or "none"
    say(f"right: providers {served}; tenants {', '.join(loaded.tenant_ids)}")


@keys_app.command("create", short_help="Write a random key into a new file.")
def create_key(*, name: PrincipalName, folder: Folder, add: Add = False) -> None:
    """Write a random key into a new file, DIR/NAME/1, that its owner alone may read; no file is written over."""
    from agentic_trading.bus.signing import write_key

    say(f"written: {write_key(folder, name, add=add)}")


def _places(values: Mapping[str, Any], *above: str) -> Iterator[tuple[str, Any]]:
    """Yield every value that is no table, with its place."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _places(value, *above, name)
        elif value != {}:
            yield ".".join((*above, name)), value


def _spelled(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(each["model"] if isinstance(each, Mapping) else str(each) for each in value) or "-"
    return "-" if value is None or value == "" else str(value)

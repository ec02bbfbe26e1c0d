"""`agentic-trading keys`: the keys by which principals prove that a message is theirs."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.app.cli.exits import say

app = typer.Typer(help="The keys of principals, which sign messages.", no_args_is_help=True)

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


@app.command("create")
def create_key(*, name: PrincipalName, folder: Folder, add: Add = False) -> None:
    """Write a random key into a new file, DIR/NAME/1, that its owner alone may read; no file is written over."""
    from agentic_trading.bus.signing import write_key

    say(f"written: {write_key(folder, name, add=add)}")

"""The commands of the program as it is installed: the gateway's, and those of packages, loaded."""

import typer.main
from typer.core import TyperGroup

from agentic_trading.cli.commands import OfferedCommand, PlainGroup, app


def whole_program() -> TyperGroup:
    """Return the program with every command, those of installed packages as well."""
    root = typer.main.get_command(app)
    assert isinstance(root, PlainGroup)
    with root.make_context("agentic-trading", [], resilient_parsing=True) as context:
        names = root.list_commands(context)
    for name in names:
        if isinstance(offered := root.commands[name], OfferedCommand):
            root.commands[name] = offered.load()
    return root

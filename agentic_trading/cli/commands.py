"""The command tree of `agentic-trading`, with the commands of installed packages."""

from asyncio import CancelledError
from functools import cache, lru_cache
from itertools import groupby
from operator import attrgetter
from textwrap import fill
from typing import Annotated, Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typing_extensions import override

from agentic_trading import __version__
from agentic_trading.cli import (
    api_keys,
    archive,
    ask,
    budget,
    config,
    dashboard,
    dlq,
    look,
    models,
    parse,
    records,
    serve,
    services,
    topics,
    worker,
)
from agentic_trading.cli.exits import INTERRUPTED, ExitCode, say

COMMANDS: Final = "agentic_trading.commands"
"""The entry point group of commands. The name of an entry point is the name of its command."""


def plainly(command: Any) -> Any:
    """Hide the types of arguments in the help of a command and its subcommands, and return it."""
    for each in (command, *getattr(command, "commands", {}).values()):
        for param in each.params if each is not None else ():
            if isinstance(param, TyperArgument):
                vars(param)["display_type_rich"] = lambda ctx: ""  # noqa: ARG005 - as Typer calls it
    return command


class OfferedCommand(TyperCommand):
    """The line of `--help` for a command of an installed package. The package is imported by `load`."""

    def load(self) -> Any:
        """Import and return the command. Raises `OfferError` if it is in several packages, or not a command."""
        from agentic_trading import plugins

        offer: Any = plugins.offer_of(COMMANDS, str(self.name))
        found = plugins.loaded(offer)
        if not (isinstance(found, typer.Typer) or callable(found)):
            raise plugins.OfferError(offer, "is neither a function nor a typer.Typer")
        return _command_of(found, str(self.name))


@lru_cache(maxsize=16)
def _command_of(found: Any, name: str) -> Any:
    """Return a function or a `typer.Typer` of a package as a command."""
    holder = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name)(found)
    return typer.main.get_group(holder).commands[name]


class PlainGroup(TyperGroup):
    """The gateway's commands and those of installed packages.

    A package is imported when one of its commands is called. Usage errors describe the problem without the validator's words. Help lists arguments like options.
    """

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or the line of `--help` for a command of a package."""
        if isinstance(self.commands.get(cmd_name), OfferedCommand | None):
            self._add_offered()
        return plainly(super().get_command(ctx, cmd_name))

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, the gateway's first."""
        self._add_offered()
        return super().list_commands(ctx)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to call. A command of a package is imported here."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, plainly(command.load()) if isinstance(command, OfferedCommand) else command, rest

    @override
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, and a line for each package command whose name is already taken."""
        from agentic_trading import plugins

        super().format_commands(ctx, formatter)
        for offer in plugins.offers(COMMANDS):
            if not isinstance(self.commands[offer.name], OfferedCommand):
                package = plugins.package_of(offer)
                text = f"The command {offer.name} of the package {package} is not available: the gateway has a command of this name."
                formatter.write_paragraph()
                formatter.write_text(text)

    def _add_offered(self) -> None:
        from agentic_trading import plugins

        own = {name: each for name, each in self.commands.items() if not isinstance(each, OfferedCommand)}
        self.commands = dict(own)  # rebuilt, because a package may have been installed since the last call
        for name, same in groupby(plugins.offers(COMMANDS), key=attrgetter("name")):
            if name in own:
                continue
            offers = list(same)
            packages = " and ".join(map(plugins.package_of, offers))
            if len(offers) > 1:
                text = f"Not available: it is in {packages}."
            else:
                text = plugins.docstring_of(offers[0]) or f"From the package {packages}."
            self.commands[name] = OfferedCommand(name, callback=None, short_help=text)

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command. Wrong values and interruptions become plain messages."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as e:
            from agentic_trading.operate.lines import printable_lines

            e.message = printable_lines(plain_usage_errors(e.message))
            raise
        except (KeyboardInterrupt, CancelledError):
            say(INTERRUPTED, err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def plain_usage_errors(message: str) -> str:
    """Return a message without a validator's prefix: `Input should be …` becomes `it should be …`."""
    text = message.removeprefix("Value error, ")
    should = text.removeprefix("Input should be ")
    return text if should == text else f"it should be {should.partition(', unable to')[0]}"


_EXIT_CODES = "\b\nExit codes:\n" + "\n".join(
    fill(code.meaning, 78, initial_indent=f"  {code:>3}  ", subsequent_indent=" " * 7) for code in ExitCode
)

app = typer.Typer(
    name="agentic-trading",
    cls=PlainGroup,
    help="Run, budget, record and replay LLM calls for trading.",
    epilog=_EXIT_CODES,
    rich_markup_mode=None,  # because rich help takes 0.23 s of CPU instead of 0.09 s
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.add_typer(look.trace_app, name="trace")
app.command("records", short_help="List, count or follow the records of logs.")(records.records_command)
app.command("ask", short_help="Ask a model about a log, within limits.")(ask.ask_command)
app.command("spend", short_help="Sum attempts, tokens and cost of calls.")(look.spend_command)
app.add_typer(look.audit_app, name="audit")
app.add_typer(budget.app, name="budget")
app.command("halt", short_help="Stop new calls and cancel calls in flight.")(budget.halt_subcommand)
app.command("resume", short_help="Lift a halt.")(budget.resume_subcommand)
app.command("parse", short_help="Parse a model's raw answer, or reject it with a reason.")(
    parse.parse_command
)
app.add_typer(models.app, name="models")
app.add_typer(models.prices_app, name="prices")
app.add_typer(config.app, name="config", short_help="Show and check the configuration.")
app.command("worker", short_help="Run the calls on a bus and publish the answers.")(worker.worker_command)
app.command("submit", short_help="Publish envelopes to a bus.")(worker.submit_command)
app.command("serve", short_help="Serve agents that use the SDKs of OpenAI and Anthropic.")(
    serve.serve_command
)
app.add_typer(services.app, name="services")
app.add_typer(topics.app, name="topics")
app.add_typer(archive.app, name="archive", short_help="Archive the records of all workers in one log.")
app.add_typer(dlq.app, name="dlq")
app.add_typer(config.keys_app, name="keys")
app.command("dashboard", short_help="Serve pages about budgets and records for a browser.")(
    dashboard.dashboard_command
)
app.add_typer(api_keys.app, name="api-keys")


def print_version(value: bool) -> None:  # noqa: FBT001 - typer hands an option's value over by place
    """Print the version and exit."""
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def global_options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=print_version),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print a traceback if the command fails.")] = False,
) -> None:
    """Accept the options before a command. `main` reads `--debug` itself."""


@cache  # because it takes 30 ms, and a process may run several commands
def command_tree() -> Any:
    """Return the root command."""
    return typer.main.get_command(app)

"""The commands of `agentic-trading` together, and how one ends that is interrupted."""

from asyncio import CancelledError
from textwrap import fill
from typing import Annotated, Any, Final

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typing_extensions import override

from agentic_trading import __version__
from agentic_trading.cli import (
    archive,
    ask,
    budget,
    config,
    dlq,
    look,
    models,
    parse,
    prices,
    services,
    topics,
    worker,
)
from agentic_trading.cli.exits import INTERRUPTED, ExitCode, say

COMMANDS: Final = "agentic_trading.commands"
"""The group of entry points in which packages, the desk among them, offer commands by their names."""


def plainly(command: Any) -> Any:
    """Return a command whose arguments, and those of its own commands, are shown without their types."""
    for each in (command, *getattr(command, "commands", {}).values()):
        for param in each.params if each is not None else ():
            if isinstance(param, TyperArgument):
                vars(param)["display_type_rich"] = lambda ctx: ""  # noqa: ARG005 - as Typer calls it
    return command


class OfferedCommand(TyperCommand):
    """A command that an installed package offers; listing it loads nothing of the package."""

    def __init__(self, offer: Any) -> None:
        from agentic_trading import plugins

        summary = plugins.docstring_of(offer) or f"From the package {plugins.package_of(offer)}."
        super().__init__(offer.name, callback=None, short_help=summary)

    def load(self) -> Any:
        """Return the command itself; raises `OfferError` where two packages offer it, or it is none."""
        from agentic_trading import plugins

        offer = plugins.offer_of(COMMANDS, str(self.name))
        found = plugins.loaded(COMMANDS, offer) if offer is not None else None
        around = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
        around.callback()(lambda: None)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=self.name)
        elif callable(found):
            around.command(self.name)(found)
        elif offer is not None:
            package = plugins.package_of(offer)
            raise plugins.OfferError(COMMANDS, offer.name, package, "is no function and no typer.Typer")
        group: Any = typer.main.get_command(around)
        return group.commands[self.name]


class PlainGroup(TyperGroup):
    """The gateway's commands, and those that installed packages offer: one of these is loaded when it is called.

    It says what is wrong with an option, and not who found it; help names arguments as options.
    """

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one of another package as it is listed."""
        if cmd_name not in self.commands:
            self._add_offered()
        return plainly(super().get_command(ctx, cmd_name))

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, the gateway's first."""
        self._add_offered()
        return super().list_commands(ctx)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called; what a package offers is loaded now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, plainly(command.load()) if isinstance(command, OfferedCommand) else command, rest

    def _add_offered(self) -> None:
        from agentic_trading import plugins

        for offer in plugins.offers(COMMANDS):
            if offer.name not in self.commands:
                self.commands[offer.name] = OfferedCommand(offer)

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command; a wrong value raises `BadParameter` in plain words, an interruption ends it with a message."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as e:
            from agentic_trading.cli.output import printable_lines

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
    help="LLM calls for trading: under budget, on record, repeatable.",
    epilog=_EXIT_CODES,
    rich_markup_mode=None,  # rich help takes 0.23 s of CPU instead of 0.09
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.add_typer(look.trace_app, name="trace")
app.command("ask", short_help="Ask a model about a log, under limits.")(ask.ask_command)
app.command("spend", short_help="Sum what calls cost.")(look.spend_command)
app.add_typer(look.audit_app, name="audit")
app.add_typer(budget.app, name="budget")
app.command("halt", short_help="Stop new calls, cancel calls in flight.")(budget.halt_subcommand)
app.command("resume", short_help="Lift a halt.")(budget.resume_subcommand)
app.command("parse", short_help="Read a model's raw answer, or say why not.")(parse.parse_command)
app.add_typer(models.app, name="models")
app.add_typer(prices.app, name="prices")
app.add_typer(config.app, name="config", short_help="The configuration: show it, check it.")
app.command("worker", short_help="Take envelopes from a bus and answer them.")(worker.worker_command)
app.command("submit", short_help="Put envelopes on a bus.")(worker.submit_command)
app.add_typer(services.app, name="services")
app.add_typer(topics.app, name="topics")
app.add_typer(archive.app, name="archive", short_help="The records of all workers of a bus in one log.")
app.add_typer(dlq.app, name="dlq")
app.add_typer(config.keys_app, name="keys")


def print_version(value: bool) -> None:  # noqa: FBT001 - typer hands an option's value over by place
    """Print the version and end."""
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def global_options(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
) -> None:
    """Take the options that stand before a command; `main` reads `--debug` itself."""

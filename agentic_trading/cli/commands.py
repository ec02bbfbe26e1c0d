"""The commands of `agentic-trading` together, and how one ends that is interrupted."""

from asyncio import CancelledError
from textwrap import fill
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperGroup
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
from agentic_trading.desk.cli import run, strategy


class PlainGroup(TyperGroup):
    """A group of commands that says what is wrong with an option, and not who found it; help names arguments as options."""

    @override
    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; its arguments, and those of its own commands, are shown without their types."""
        command = super().get_command(ctx, cmd_name)
        for each in (command, *getattr(command, "commands", {}).values()):
            for param in each.params if each is not None else ():
                if isinstance(param, TyperArgument):
                    vars(param)["display_type_rich"] = lambda ctx: ""  # noqa: ARG005 - as Typer calls it
        return command

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
app.command("run", short_help="Run a trading session.")(run.run_command)
app.add_typer(look.trace_app, name="trace")
app.command("ask", short_help="Ask a model about a log, under limits.")(ask.ask_command)
app.command("spend", short_help="Sum what calls cost.")(look.spend_command)
app.add_typer(look.audit_app, name="audit")
app.add_typer(budget.app, name="budget")
app.command("halt", short_help="Stop new calls, cancel calls in flight.")(budget.halt_subcommand)
app.command("resume", short_help="Lift a halt.")(budget.resume_subcommand)
app.add_typer(look.replay_app, name="replay")
app.command("parse", short_help="Read a model's raw answer, or say why not.")(parse.parse_command)
app.add_typer(look.data_app, name="data")
app.add_typer(strategy.app, name="strategy")
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

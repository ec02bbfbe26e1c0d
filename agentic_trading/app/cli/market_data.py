"""`agentic-trading data`: the shipped samples, and what is in them or in a file."""

import asyncio
from typing import Annotated

import typer

from agentic_trading.app.cli.log_selection import AsJson

app = typer.Typer(help="Market data: shipped samples and files.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A sample, a CSV file, or - for standard input.")]


@app.command("list")
def list_samples(*, as_json: AsJson = False) -> None:
    """Name the samples that ship with the package."""
    from agentic_trading.app.cli.data_tables import sample_table
    from agentic_trading.app.cli.output import print_table, show_json
    from agentic_trading.desk.market.samples import SAMPLES

    if as_json:
        show_json(list(SAMPLES.values()))
    else:
        print_table(sample_table(SAMPLES.values()))


@app.command()
def describe(name: Name, *, as_json: AsJson = False) -> None:
    """Read a sample or a file as a run would, and tell its rows, span, gaps, licence and checksum."""
    from agentic_trading.app.cli.data_tables import contents_text, described_source
    from agentic_trading.app.cli.output import print_table, show_json

    contents = asyncio.run(described_source(name))
    if as_json:
        show_json(contents)
    else:
        print_table(contents_text(contents))

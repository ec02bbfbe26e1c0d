"""The bar that a person watches while a session runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from agentic_trading.app.report import RunProgress

OnProgress = Callable[[RunProgress], None]


@contextmanager
def bar_on_standard_error() -> Iterator[OnProgress]:
    """Draw a bar on standard error while the session tells how far it is; it is gone at the end."""
    columns = (
        TextColumn("{task.fields[as_of]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("bars · {task.fields[calls]} calls · {task.fields[fills]} fills"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with ProgressBar(*columns, console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task("", total=None, as_of="starting", calls=0, fills=0)

        def on_progress(now: RunProgress) -> None:
            drawn.update(
                task,
                completed=now.bars_done,
                total=now.bars_total,
                as_of=f"{now.as_of:%Y-%m-%d %H:%M}",
                calls=now.calls,
                fills=now.fills,
            )

        yield on_progress


@contextmanager
def no_bar() -> Iterator[OnProgress]:
    """Draw nothing: nobody watches, or a program reads."""
    yield lambda _now: None

"""`agentic-trading demo`: what the records are good for, shown in a minute."""

from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from agentic_trading.app.cli.exits import ExitCode, stop


def demo() -> None:
    """Show in a minute why an order was sent, that a run repeats, what a cut answer is, and what a crash costs."""
    from agentic_trading.app.cli.demo_steps import a_cut_order, a_killed_call, again, overture, why_this_order
    from agentic_trading.app.settings import start

    start()
    with TemporaryDirectory(prefix="agentic-trading-demo-") as folder:
        session = Path(folder) / "session"
        report = overture(session)
        went_well = (
            why_this_order(report, Path(folder) / "forged.jsonl")
            and again(session)
            and a_cut_order()
            and a_killed_call(Path(folder) / "killed")
        )
    if not went_well:
        stop(
            ExitCode.FOUND_WRONG,
            "the demo did not come out as it should: what is said above is not what was meant",
        )
    typer.echo("\nThe same on a session of your own: agentic-trading run --data btcusdt-5m")

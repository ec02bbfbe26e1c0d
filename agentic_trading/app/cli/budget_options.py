"""Which budgets a command means: those of a session's folder, or of a server that workers share."""

from typing import Annotated

import typer

Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Whose budgets.")]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="A server that workers share, redis://HOST:PORT; if left out, AGENTIC_LEDGER_URL, else --store.",
    ),
]
ReasonOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="A reason, kept with the order.")]

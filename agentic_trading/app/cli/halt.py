"""`agentic-trading halt` and `resume`: stop what runs, within a second, wherever it runs."""

from typing import Annotated

import typer

from agentic_trading.app.cli.budget_options import LedgerUrl, ReasonOption
from agentic_trading.app.cli.log_selection import AsJson, Store

Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Whose calls; * means every tenant's.")]
Agent = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Only those of this agent.")]
Workflow = Annotated[
    str | None, typer.Option("--workflow", metavar="NAME", help="Only those of this workflow.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help="Only those to this model: NAME, PROVIDER/NAME or PROVIDER/*."
    ),
]


def halt(
    *,
    tenant: Tenant = "default",
    agent: Agent = None,
    workflow: Workflow = None,
    model: Model = None,
    why: ReasonOption = "",
    store: Store = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Let no new call run, and end those under way: of a tenant, or of one agent, workflow or model.

    Every worker follows within a second. What was sent is charged, all of it is on record, and `resume` takes it back.
    """
    from agentic_trading.app.budget.commands import halted
    from agentic_trading.app.cli.command_text import give_and_tell

    wanted = halted(tenant, agent=agent, workflow=workflow, model=model)
    give_and_tell(wanted, tenant, why, store, ledger, as_json=as_json)


def resume(
    *,
    tenant: Tenant = "default",
    agent: Agent = None,
    workflow: Workflow = None,
    model: Model = None,
    why: ReasonOption = "",
    store: Store = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take back a halt of exactly this scope; others go on to hold."""
    from agentic_trading.app.budget.commands import resumed
    from agentic_trading.app.cli.command_text import give_and_tell

    wanted = resumed(tenant, agent=agent, workflow=workflow, model=model)
    give_and_tell(wanted, tenant, why, store, ledger, as_json=as_json)

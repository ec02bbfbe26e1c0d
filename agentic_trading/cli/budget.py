"""`agentic-trading budget`, `halt` and `resume`: limits, what is spent, and the controls of operators."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.options import AsJson, Store

BudgetOptionsTenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Whose budgets.")]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="A server that workers share, redis://HOST:PORT; if left out, AGENTIC_LEDGER_URL, else --store.",
    ),
]
CommandStore = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="A session's folder; without --store and --ledger, the only live place, or else AGENTIC_STORE.",
    ),
]
CommandLedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help="A server that workers share, redis://HOST:PORT."),
]
ReasonOption = Annotated[str, typer.Option("--why", metavar="TEXT", help="A reason, kept with the command.")]


app = typer.Typer(help="Budgets: what is left, the controls, what happened.", no_args_is_help=True)

Scope = Annotated[
    str, typer.Argument(metavar="SCOPE", help="One of call, trace, agent, workflow, principal, tenant.")
]
Id = Annotated[str, typer.Argument(metavar="ID", help="Which one; * is each of them by itself.")]
Per = Annotated[
    str, typer.Option("--per", metavar="WINDOW", help="minute, hour, day, month, or none: in total.")
]
Usd = Annotated[str | None, typer.Option("--usd", metavar="X", help="At most so many dollars.")]
TokensOption = Annotated[int | None, typer.Option("--tokens", metavar="N", help="At most so many tokens.")]
Calls = Annotated[int | None, typer.Option("--calls", metavar="N", help="At most so many calls.")]
Remove = Annotated[bool, typer.Option("--remove", help="Remove the limit.")]
Force = Annotated[
    bool, typer.Option("--force", help="Accept a name that nothing at the place knows: one that comes later.")
]
DiscardServer = Annotated[
    bool,
    typer.Option(
        "--discard-server",
        help="Count the logs only: let what the server has charged beyond them be spent again.",
    ),
]
Stores = Annotated[
    list[Path] | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="A log or a session's folder, as often as there are; if left out, AGENTIC_STORE, else the newest session.",
    ),
]
Every = Annotated[bool, typer.Option("--all", help="List each event, repeated ones too.")]
Seconds = Annotated[
    float | None, typer.Option("--seconds", metavar="N", min=0.1, help="End after so many; else with Ctrl-C.")
]


ShownTenant = Annotated[
    str,
    typer.Option(
        "--tenant", metavar="ID", help="Whose budgets; * means every tenant that a worker reported."
    ),
]


@app.command("show", short_help="Show limits, and what is spent, held and queued.")
def show_budgets(
    *,
    tenant: ShownTenant = "default",
    store: Store = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show limits, what is spent, held and in doubt, queued requests, and the last denials."""
    from dataclasses import asdict

    from agentic_trading.cli.budget_tables import all_budgets, location_of, read_budgets
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.llm.event import PLATFORM

    where = location_of(store, ledger)
    views = run_async(read_budgets(where, tenant))
    if not as_json:
        print_table(*all_budgets(views, where.name))
    elif tenant == PLATFORM:
        show_json([asdict(view) for view in views])
    else:
        show_json(asdict(views[0]))


@app.command("watch")
def watch_budgets(
    *,
    tenant: ShownTenant = "default",
    seconds: Seconds = None,
    store: Store = None,
    ledger: LedgerUrl = None,
) -> None:
    """Show the same as it changes, until Ctrl-C."""
    from agentic_trading.cli.budget_tables import location_of, watch

    run_async(watch(location_of(store, ledger), tenant, seconds=seconds))


@app.command("set", short_help="Set a limit.")
def set_subcommand(
    scope: Scope,
    id_: Id,
    *,
    per: Per = "none",
    usd: Usd = None,
    tokens: TokensOption = None,
    calls: Calls = None,
    remove: Remove = False,
    why: ReasonOption = "",
    force: Force = False,
    tenant: BudgetOptionsTenant = "default",
    store: CommandStore = None,
    ledger: CommandLedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set a limit in place of the one on the same scope, id and window; workers follow within a second.

    Without a place, the only live one is meant. A name that nothing there knows is refused, with the nearest ones.
    """
    from agentic_trading.cli.budget_tables import execute_and_print
    from agentic_trading.operate.budgets import limit_command

    wanted = limit_command(scope, id_, per, usd=usd, tokens=tokens, calls=calls, remove=remove)
    execute_and_print(wanted, tenant, why, store, ledger, force=force, as_json=as_json)


@app.command("history", short_help="List commands, warnings and denials from the log.")
def history(
    *,
    tenant: BudgetOptionsTenant = "default",
    every: Every = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List from the log commands, warnings, denials, and what was charged in doubt or above its reservation."""
    from dataclasses import asdict

    from agentic_trading.cli.budget_tables import history_table
    from agentic_trading.cli.options import log_of
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.operate.budget_log import read_budget_events

    found = run_async(read_budget_events(log_of(store), tenant, together=not every))
    if as_json:
        show_json([asdict(one) for one in found])
    else:
        print_table(*history_table(found, tenant))


@app.command("rebuild", short_help="Rebuild the ledger on a server from logs.")
def rebuild_subcommand(
    *,
    tenant: BudgetOptionsTenant = "default",
    stores: Stores = None,
    ledger: LedgerUrl = None,
    discard_server: DiscardServer = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the ledger on a server from logs and from what it knows itself, and open it for calls again.

    Name every log that was written with this server. A charge that only the server knows is kept. Nothing is done if
    its totals are higher even so. Limits and halts are restored from the same logs, before calls run again.
    """
    import gc
    from dataclasses import asdict
    from zoneinfo import ZoneInfo

    from agentic_trading.cli.budget_tables import rebuild_lines
    from agentic_trading.cli.options import log_of
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.settings import configured
    from agentic_trading.operate.budget_log import rebuild_ledger

    logs = [log_of(store) for store in stores] if stores else [log_of(None)]
    config = configured()
    gc.disable()  # collections take 40 % of reading a large log: all of its calls are kept, and none is in a cycle
    report = run_async(
        rebuild_ledger(
            logs,
            ledger or config.ledger.url,
            tenant,
            zone=ZoneInfo(config.zone),
            discard_server=discard_server,
        )
    )
    if as_json:
        show_json(asdict(report))
    else:
        print_table(*rebuild_lines(report))


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


def halt_subcommand(
    *,
    tenant: Tenant = "default",
    agent: Agent = None,
    workflow: Workflow = None,
    model: Model = None,
    why: ReasonOption = "",
    force: Force = False,
    store: CommandStore = None,
    ledger: CommandLedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop new calls and cancel calls in flight: of a tenant, or of one agent, workflow or model.

    Every worker follows within a second. What was sent is charged, all of it is on record, and `resume` lifts the halt.
    Without a place, the only live one is meant. A name that nothing there knows is refused, with the nearest ones.
    Exit code 1 if a running worker, or all of them, did not acknowledge the halt within three seconds.
    """
    from agentic_trading.cli.budget_tables import execute_and_print
    from agentic_trading.operate.budgets import halt_command

    wanted = halt_command(tenant, agent=agent, workflow=workflow, model=model)
    execute_and_print(wanted, tenant, why, store, ledger, force=force, as_json=as_json)


def resume_subcommand(
    *,
    tenant: Tenant = "default",
    agent: Agent = None,
    workflow: Workflow = None,
    model: Model = None,
    why: ReasonOption = "",
    store: CommandStore = None,
    ledger: CommandLedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Lift the halt of exactly this scope; others stay. Without a place, the only live one is meant."""
    from agentic_trading.cli.budget_tables import execute_and_print
    from agentic_trading.operate.budgets import resume_command

    wanted = resume_command(tenant, agent=agent, workflow=workflow, model=model)
    execute_and_print(wanted, tenant, why, store, ledger, force=True, as_json=as_json)

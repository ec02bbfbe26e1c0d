"""`agentic-trading budget`, `halt` and `resume`: limits, spend, and the controls of operators."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.options import AsJson, Store

BudgetOptionsTenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="The tenant.")]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="A ledger server that workers share, redis://HOST:PORT.  [default: AGENTIC_LEDGER_URL or the configuration]",
    ),
]
CommandStore = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="The folder of a session.  [default: the only live session or ledger, or AGENTIC_STORE]",
    ),
]
CommandLedgerUrl = Annotated[
    str | None,
    typer.Option("--ledger", metavar="URL", help="A ledger server that workers share, redis://HOST:PORT."),
]
ReasonOption = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason, recorded with the command.")
]


app = typer.Typer(help="Show, set and rebuild budgets.", no_args_is_help=True)

Scope = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE", help="Scope of the limit: call, trace, agent, workflow, principal or tenant."
    ),
]
Id = Annotated[
    str, typer.Argument(metavar="ID", help="Id in the scope, such as an agent. * limits each id separately.")
]
Per = Annotated[
    str,
    typer.Option("--per", metavar="WINDOW", help="Window: minute, hour, day, month, or none for the total."),
]
Usd = Annotated[str | None, typer.Option("--usd", metavar="X", help="Maximum spend in dollars.")]
TokensOption = Annotated[int | None, typer.Option("--tokens", metavar="N", help="Maximum number of tokens.")]
Calls = Annotated[int | None, typer.Option("--calls", metavar="N", help="Maximum number of calls.")]
Remove = Annotated[bool, typer.Option("--remove", help="Remove the limit.")]
Force = Annotated[bool, typer.Option("--force", help="Accept an id that is not known yet.")]
DiscardServer = Annotated[
    bool,
    typer.Option(
        "--discard-server",
        help="Count only the logs. Charges that only the server has recorded can then be spent again.",
    ),
]
Stores = Annotated[
    list[Path] | None,
    typer.Option(
        "--store",
        metavar="PATH",
        help="A log, or the folder of a session. Can be repeated.  [default: AGENTIC_STORE, or the newest session]",
    ),
]
Every = Annotated[bool, typer.Option("--all", help="List repeated events separately.")]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", metavar="N", min=0.1, help="Stop after N seconds.  [default: until Ctrl-C]"),
]


OnAlert = Annotated[
    str | None,
    typer.Option(
        "--on-alert",
        metavar="CMD",
        help="Program and arguments to run for each new warning, without a shell. The event is on its standard input.",
    ),
]
ShownTenant = Annotated[
    str,
    typer.Option(
        "--tenant", metavar="ID", help="The tenant. * shows all tenants that workers have reported."
    ),
]


@app.command("show", short_help="Show limits, spend, reservations and queued requests.")
def show_budgets(
    *,
    tenant: ShownTenant = "default",
    store: Store = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show limits, spend, reservations, charges in doubt, queued requests and the latest denials.

    With --store and without --ledger, the budgets of that session are shown.
    """
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


@app.command("watch", short_help="Show budgets and update them until Ctrl-C.")
def watch_budgets(
    *,
    tenant: ShownTenant = "default",
    seconds: Seconds = None,
    on_alert: OnAlert = None,
    store: Store = None,
    ledger: LedgerUrl = None,
) -> None:
    """Show budgets and update them until Ctrl-C.

    With --on-alert, a command is run once for each new warning. It gets the event as JSON on its standard
    input. Warnings that hold at the start are sent too. If the command fails, a warning is printed.
    """
    from agentic_trading.cli.budget_tables import location_of, watch

    run_async(watch(location_of(store, ledger), tenant, seconds=seconds, on_alert=on_alert))


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
    """Set a limit, and replace the limit with the same scope, id and window.

    Workers apply it within a second. Without --store and --ledger, the command applies to the only live
    session or ledger. An unknown id is refused with a list of similar ids, unless --force is given.
    """
    from agentic_trading.cli.budget_tables import execute_and_print
    from agentic_trading.operate.budgets import limit_command

    wanted = limit_command(scope, id_, per, usd=usd, tokens=tokens, calls=calls, remove=remove)
    execute_and_print(wanted, tenant, why, store, ledger, force=force, as_json=as_json)


@app.command("history", short_help="List commands, warnings and denials in a log.")
def history(
    *,
    tenant: BudgetOptionsTenant = "default",
    every: Every = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List the budget events in a log.

    These are commands, warnings, denials, expired reservations, charges in doubt, and charges above the
    reservation.
    """
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
    """Rebuild the ledger on a server from logs and from its own records, and reopen it for calls.

    Name every log that was written with this server. Charges that only the server has recorded are kept. If
    its totals are still higher, nothing is changed. Limits and halts are restored from the same logs before
    calls run again.
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
    gc.disable()  # because collections take 40 % of reading a large log, and find nothing: all calls are kept
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


Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="The tenant. * means all tenants.")]
AgentId = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Only calls of this agent.")]
Workflow = Annotated[
    str | None, typer.Option("--workflow", metavar="NAME", help="Only calls of this workflow.")
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", metavar="NAME", help="Only calls to this model: NAME, PROVIDER/NAME or PROVIDER/*."
    ),
]


EntriesOf = Annotated[
    str | None,
    typer.Option(
        "--entries",
        metavar="SESSION",
        help="Allow the entries of a trading session again, after a loss limit or errors of its agent.",
    ),
]


def halt_subcommand(
    *,
    tenant: Tenant = "default",
    agent: AgentId = None,
    workflow: Workflow = None,
    model: Model = None,
    why: ReasonOption = "",
    force: Force = False,
    store: CommandStore = None,
    ledger: CommandLedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop new calls and cancel calls in flight of a tenant, or of one agent, workflow or model.

    Workers apply a halt within a second. Calls that were sent are charged and recorded. `resume` lifts the
    halt.

    Without --store and --ledger, the command applies to the only live session or ledger. An unknown id is
    refused with a list of similar ids, unless --force is given. The exit code is 1 if no worker is running,
    or if one of them does not acknowledge the halt within three seconds.
    """
    from agentic_trading.cli.budget_tables import execute_and_print
    from agentic_trading.operate.budgets import halt_command

    wanted = halt_command(tenant, agent=agent, workflow=workflow, model=model)
    execute_and_print(wanted, tenant, why, store, ledger, force=force, as_json=as_json)


def resume_subcommand(
    *,
    tenant: Tenant = "default",
    agent: AgentId = None,
    workflow: Workflow = None,
    model: Model = None,
    entries: EntriesOf = None,
    why: ReasonOption = "",
    store: CommandStore = None,
    ledger: CommandLedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Lift the halt of exactly this scope. Other halts stay.

    Without --store and --ledger, the command applies to the only live session or ledger.
    """
    from agentic_trading.cli.budget_tables import execute_and_print
    from agentic_trading.operate.budgets import resume_command

    wanted = resume_command(tenant, agent=agent, workflow=workflow, model=model, entries=entries)
    execute_and_print(wanted, tenant, why, store, ledger, force=True, as_json=as_json)

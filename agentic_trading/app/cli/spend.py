"""`agentic-trading spend`: what calls cost, summed as asked."""

from typing import Annotated

import typer

from agentic_trading.app.cli.log_selection import AsJson, OfTenant, Store, log_of

By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="KEYS",
        help="Any of agent, model, workflow, day, tenant, provider, with commas between.",
    ),
]


def spend(
    *, by: By = "agent,model", tenant: OfTenant = None, store: Store = None, as_json: AsJson = False
) -> None:
    """Sum attempts, tokens and cost by the given keys; days are UTC."""
    from agentic_trading.app.cli.output import ask_log, console, print_table, show_json
    from agentic_trading.app.cli.spend_tables import as_table, as_values, spend_keys
    from agentic_trading.audit.spend import spend_report

    keys = spend_keys(by)
    report = ask_log(log_of(store), lambda records: spend_report(records, *keys, tenant=tenant))
    if as_json:
        show_json(as_values(report))
    else:
        print_table(as_table(report, console().width))

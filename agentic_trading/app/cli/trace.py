"""`agentic-trading trace`: what led to what."""

from typing import Annotated

import typer

from agentic_trading.app.cli.exits import ExitCode, stop
from agentic_trading.app.cli.log_selection import AsJson, OfTenant, Store, list_command, log_of

app = typer.Typer(help="Decision chains: from a bar to a fill, and why.", no_args_is_help=True)

Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="At most N chains.")]
All = Annotated[bool, typer.Option("--all", help="Chains without a call too.")]
TraceId = Annotated[str, typer.Argument(metavar="TRACE_ID", help="A chain that `trace list` names.")]
RecordId = Annotated[
    str, typer.Argument(metavar="FILL_ID", help="A fill, or any other event, envelope or interaction.")
]


@app.command("list")
def list_traces(
    *,
    limit: Limit = 20,
    every: All = False,
    tenant: OfTenant = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Name the decision chains that went on last, the last one first, and what came of each.

    Chains in which nobody was asked, such as a trigger that was skipped, are left out without --all.
    """
    from dataclasses import asdict

    from agentic_trading.app.cli.chains import chain_table, listed
    from agentic_trading.app.cli.output import ask_log, console, print_table, show_json

    chains = ask_log(
        log_of(store), lambda records: listed(records, limit, with_calls=not every, tenant=tenant)
    )
    if as_json:
        show_json([{**asdict(chain), "outcome": outcome} for chain, outcome in chains])
    else:
        print_table(chain_table(chains, console().width))


@app.command("show")
def show_trace(
    trace_id: TraceId, *, tenant: OfTenant = None, store: Store = None, as_json: AsJson = False
) -> None:
    """Draw a chain as a tree: every event and call below its cause."""
    from agentic_trading.app.cli.chains import tree_of, values_of
    from agentic_trading.app.cli.output import ask_log, print_table, show_json
    from agentic_trading.audit.trace import TraceTree

    log = log_of(store)
    chain = TraceTree(ask_log(log, lambda records: records.trace(trace_id, tenant=tenant)))
    if not chain.nodes:
        stop(
            ExitCode.FOUND_WRONG,
            f"no chain has the id {trace_id!r}; try: {list_command(log, tenant)}",
        )
    if as_json:
        show_json(values_of(chain))
    else:
        print_table(tree_of(trace_id, chain))


@app.command("why")
def why_record(
    record_id: RecordId, *, tenant: OfTenant = None, store: Store = None, as_json: AsJson = False
) -> None:
    """Tell why there was a fill: the path of causes that leads to it, from the bar on."""
    from agentic_trading.app.cli.chains import path_of, values_of_path
    from agentic_trading.app.cli.output import ask_log, print_table, show_json
    from agentic_trading.audit.trace import UnknownRecordError, why

    log = log_of(store)
    try:
        answer = ask_log(log, lambda records: why(records, record_id, tenant=tenant))
    except UnknownRecordError as e:
        stop(ExitCode.FOUND_WRONG, f"{e}; try: {list_command(log, tenant)}")
    if as_json:
        show_json(values_of_path(answer))
    else:
        print_table(path_of(answer))

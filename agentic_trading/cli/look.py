"""The commands that read logs: `trace`, `spend` and `audit`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli import options
from agentic_trading.cli.exits import ExitCode, say, stop
from agentic_trading.cli.export import ExportFolder, SealsFile, export_command, verify_export
from agentic_trading.cli.options import AsJson, OfTenant, Stores, logs_of, trace_command

trace_app = typer.Typer(help="Show decision chains, from a bar to a fill.", no_args_is_help=True)
audit_app = typer.Typer(
    help="Verify that a log is complete and unchanged, and export it.", no_args_is_help=True
)
audit_app.command("export", short_help="Export records as Parquet, JSON Lines or CSV.")(export_command)

LimitOption = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Maximum number of chains.")]
All = Annotated[bool, typer.Option("--all", help="Include chains without a call.")]
TraceId = Annotated[
    str,
    typer.Argument(
        metavar="TRACE_ID",
        help="Id of a chain from `trace list`, or its first 8 or more characters.",
    ),
]
RecordId = Annotated[
    str,
    typer.Argument(
        metavar="FILL_ID",
        help="Id of a fill, or of any other event, envelope or interaction, or its first 8 or more characters.",
    ),
]


@trace_app.command("list", short_help="List the newest decision chains.")
def list_traces(
    *,
    limit: LimitOption = 20,
    every: All = False,
    agent: options.Agents = None,
    workflow: options.Workflows = None,
    model: options.Models = None,
    provider: options.FromProviders = None,
    subject: options.Subjects = None,
    kind: options.EventKinds = None,
    verdict: options.Verdicts = None,
    failure: options.Failures = None,
    trace: options.Trace = "",
    since: options.Since = "",
    until: options.Until = "",
    where: options.Where = "",
    tenant: OfTenant = None,
    store: Stores = None,
    as_json: AsJson = False,
) -> None:
    """List the newest decision chains with their outcomes, newest first.

    Chains without a call, such as skipped triggers, are listed only with --all. With filters, a chain is listed
    if one of its records matches all of them.
    """
    from dataclasses import asdict

    from agentic_trading.cli.chains import chain_table, warn_once
    from agentic_trading.cli.look_tables import ask_logs
    from agentic_trading.cli.output import console, print_table, show_json
    from agentic_trading.operate.trace_lines import newest_chains

    names = {
        "agent": agent,
        "workflow": workflow,
        "model": model,
        "provider": provider,
        "subject": subject,
        "kind": kind,
        "verdict": verdict,
        "failure": failure,
    }
    query = options.record_query(names, trace=trace, since=since, until=until, where=where)
    logs = logs_of(store)
    query = _with_whole_trace(logs, query, tenant)
    chains = ask_logs(
        logs,
        lambda records: newest_chains(
            records, limit, query=query, with_calls=not every, tenant=tenant, warn=warn_once
        ),
    )
    warn_of_ends(logs, tenant)
    if as_json:
        show_json([{**asdict(chain), "outcome": outcome} for chain, outcome in chains])
    else:
        print_table(chain_table(chains, console().width))
    # Also for JSON: the agents of a session may ask no model, so that an empty list looks like an empty log.
    if not chains and not every and _has_chains(logs, query, tenant):
        say("Note: no chain has a call. To list chains without a call, add --all.", err=True)


def _has_chains(logs: Sequence[Path], query: Any, tenant: str | None) -> bool:
    """Return whether a chain has a selected record, with or without a call."""
    from agentic_trading.cli.look_tables import ask_logs

    return bool(ask_logs(logs, lambda records: records.traces(1, query=query, tenant=tenant)))


@trace_app.command("show")
def show_trace(
    trace_id: TraceId, *, tenant: OfTenant = None, store: Stores = None, as_json: AsJson = False
) -> None:
    """Show a chain as a tree, with each event and call below its cause."""
    from agentic_trading.audit.trace import AmbiguousIdError, TraceTree, full_id
    from agentic_trading.cli.chains import tree_of, values_of
    from agentic_trading.cli.look_tables import ask_logs
    from agentic_trading.cli.output import print_table, show_json

    logs = logs_of(store)
    try:
        trace_id = ask_logs(logs, lambda records: full_id(records, trace_id, of="trace", tenant=tenant))
    except AmbiguousIdError as e:
        stop(ExitCode.FOUND_WRONG, str(e))
    chain = TraceTree(ask_logs(logs, lambda records: records.trace(trace_id, tenant=tenant)))
    warn_of_ends(logs, tenant)
    if not chain.nodes:
        stop(
            ExitCode.FOUND_WRONG,
            f"no chain has the id {trace_id!r}. To list chains, run: {trace_command('list', logs, tenant)}",
        )
    if as_json:
        show_json(values_of(chain))
    else:
        print_table(tree_of(trace_id, chain))


@trace_app.command("why", short_help="Show why a fill happened.")
def why_record(
    record_id: RecordId, *, tenant: OfTenant = None, store: Stores = None, as_json: AsJson = False
) -> None:
    """Show why a fill happened: the path of causes from the bar to the fill."""
    from agentic_trading.audit.trace import AmbiguousIdError, UnknownRecordError, why
    from agentic_trading.cli.chains import path_of, values_of_path
    from agentic_trading.cli.look_tables import ask_logs
    from agentic_trading.cli.output import print_table, show_json

    logs = logs_of(store)
    try:
        answer = ask_logs(logs, lambda records: why(records, record_id, tenant=tenant))
        warn_of_ends(logs, tenant)
    except UnknownRecordError as e:
        stop(ExitCode.FOUND_WRONG, f"{e}. {_where_to_look(record_id, logs, tenant)}")
    except AmbiguousIdError as e:
        stop(ExitCode.FOUND_WRONG, str(e))
    if as_json:
        show_json(values_of_path(answer))
    else:
        print_table(path_of(answer))


def _where_to_look(unknown: str, logs: Sequence[Path], tenant: str | None) -> str:
    """Return the command to run after an id that no record has."""
    from agentic_trading.audit.trace import full_id
    from agentic_trading.cli.look_tables import ask_logs

    # `trace list` prints ids of traces, so that one of these is easily given for that of a record.
    trace_id = ask_logs(logs, lambda records: full_id(records, unknown, of="trace", tenant=tenant))
    if ask_logs(logs, lambda records: records.trace(trace_id, tenant=tenant)):
        show = trace_command(f"show {trace_id}", logs, tenant)
        return f"It is the id of a chain. To show the chain with the ids of its records, run: {show}"
    return f"To list chains, run: {trace_command('list', logs, tenant)}"


By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="KEYS",
        help="Comma-separated keys: agent, model, workflow, day, tenant, provider.",
    ),
]


def spend_command(
    *,
    by: By = "agent,model",
    agent: options.Agents = None,
    workflow: options.Workflows = None,
    model: options.Models = None,
    provider: options.FromProviders = None,
    subject: options.Subjects = None,
    failure: options.Failures = None,
    trace: options.Trace = "",
    since: options.Since = "",
    until: options.Until = "",
    tenant: OfTenant = None,
    store: Stores = None,
    as_json: AsJson = False,
) -> None:
    """Sum attempts, tokens and cost by the given keys. Days are in UTC.

    Only sent attempts count. An attempt in doubt has no known result and is charged in full, as in the
    ledger.
    """
    from agentic_trading.audit.spend import spend_report
    from agentic_trading.cli.look_tables import as_table, as_values, ask_logs, spend_keys
    from agentic_trading.cli.output import print_table, show_json

    keys = spend_keys(by)
    names = {
        "agent": agent,
        "workflow": workflow,
        "model": model,
        "provider": provider,
        "subject": subject,
        "failure": failure,
    }
    query = options.record_query(names, trace=trace, since=since, until=until)
    logs = logs_of(store)
    query = _with_whole_trace(logs, query, tenant)
    report = ask_logs(logs, lambda records: spend_report(records, *keys, query=query, tenant=tenant))
    warn_of_ends(logs, tenant)
    if as_json:
        show_json(as_values(report))
    else:
        print_table(as_table(report))


def _with_whole_trace(logs: Sequence[Path], query: Any, tenant: str | None) -> Any:
    """Return a query in which the beginning of a trace's id is the id. Several matches end the command."""
    from agentic_trading.audit.trace import AmbiguousIdError
    from agentic_trading.cli.look_tables import ask_logs, with_whole_trace

    try:
        return ask_logs(logs, lambda records: with_whole_trace(records, query, tenant))
    except AmbiguousIdError as e:
        stop(ExitCode.FOUND_WRONG, str(e))


def warn_of_ends(logs: Sequence[Path], tenant: str | None) -> None:
    """Print a warning for each finding at the ends of logs."""
    from agentic_trading.operate.lines import printable
    from agentic_trading.operate.log_check import check_end

    found = [finding for log in logs for finding in run_async(check_end(log)).findings]
    if tenant is not None and found:  # without the places, because they are of all tenants
        say("Warning: the log is not whole. Records may be missing below.", err=True)
        return
    for finding in found:
        say(f"Warning: {printable(str(finding))}. Records may be missing below.", err=True)


LogOrSession = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH", help="A log, or the folder of a session, whose other files are then checked too."
    ),
]


CheckpointOption = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="File with checkpoints of the log (`log.checkpoint_file`). Each must still be one of its lines.",
    ),
]
HeadOption = Annotated[
    list[str] | None,
    typer.Option(
        "--head",
        metavar="HASH@LINE",
        help="A line and its hash, as an earlier check printed them. Can be repeated.",
    ),
]


@audit_app.command("verify", short_help="Check every line, hash and cause of a log.")
def audit_verify(
    path: LogOrSession = None,
    *,
    checkpoint: CheckpointOption = None,
    head: HeadOption = None,
    export: ExportFolder = None,
    seals: SealsFile = None,
    as_json: AsJson = False,
) -> None:
    """Check every line, seal, hash and cause of a log, its recorded end, and the files of its session.

    Prints whether the log is whole, broken (with place and reason) or cut off. Exits with 1 unless it is
    whole. With --checkpoint or --head, it also finds lines that were cut off the end, and a log that was written
    again from the start. With --export, it checks an export of the log instead.
    """
    from agentic_trading.cli.look_tables import checked_log, known_end, log_values
    from agentic_trading.cli.output import print_table, show_json
    from agentic_trading.cli.settings import start
    from agentic_trading.operate.log_check import audit_log

    start()
    if export is not None:
        verify_export(export, seals, as_json=as_json)
        return
    if path is None:
        stop(ExitCode.BAD_INPUT, "PATH is missing. Name a log, the folder of a session, or --export DIR.")
    ends = [known_end(text) for text in head or ()]
    found = run_async(audit_log(path, checkpoint_file=checkpoint, ends=ends))
    if as_json:
        show_json(log_values(found))
    else:
        print_table(checked_log(found))
    if found.findings:
        raise typer.Exit(ExitCode.FOUND_WRONG)

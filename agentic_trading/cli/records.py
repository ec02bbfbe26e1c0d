"""The command `records`: select, count and follow the records of logs."""

from typing import Annotated

import typer

from agentic_trading.cli import options

Tenants = Annotated[
    list[str] | None,
    typer.Option("--tenant", metavar="IDS", help="Only records of these tenants.  [default: all tenants]"),
]
Grep = Annotated[
    str,
    typer.Option(
        "--grep", "-g", metavar="TEXT", help="Only records with this text, prompts and answers included."
    ),
]
CausedBy = Annotated[
    list[str] | None,
    typer.Option(
        "--caused-by",
        metavar="KEY=NAMES",
        help="Only records that follow from one with this value, such as model=gpt-5. Can be repeated.",
    ),
]
NewestLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        metavar="N",
        min=0,
        help="Only the N newest records. 0 means all.  [default: 50 on a terminal, otherwise all]",
    ),
]
Reverse = Annotated[bool, typer.Option("--reverse", "-r", help="Print the newest record first.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")]
Count = Annotated[bool, typer.Option("--count", help="Print only the number of records.")]
CountBy = Annotated[
    str,
    typer.Option(
        "--count-by",
        metavar="KEYS",
        help="Print sums by comma-separated keys: day, kind, tenant, agent, workflow, provider, model, subject, verdict, failure.",
    ),
]
Output = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FORMAT",
        help="table, json (one object a line), csv, or raw (the lines of the log).",
    ),
]


def records_command(
    *,
    agent: options.Agents = None,
    workflow: options.Workflows = None,
    model: options.Models = None,
    provider: options.FromProviders = None,
    tenant: Tenants = None,
    subject: options.Subjects = None,
    kind: options.EventKinds = None,
    verdict: options.Verdicts = None,
    failure: options.Failures = None,
    trace: options.Trace = "",
    since: options.Since = "",
    until: options.Until = "",
    where: options.Where = "",
    grep: Grep = "",
    caused_by: CausedBy = None,
    limit: NewestLimit = None,
    reverse: Reverse = False,
    follow: Follow = False,
    count: Count = False,
    count_by: CountBy = "",
    output: Output = "table",
    store: options.Stores = None,
) -> None:
    """List, count or follow the records of logs.

    An option that is given twice, or with commas, matches any of its values. Different options must all match.
    Records are printed oldest first.
    """
    from agentic_trading.cli.record_view import RecordView, cause_of, output_form, print_view, sum_keys

    names = {
        "agent": agent,
        "workflow": workflow,
        "model": model,
        "provider": provider,
        "tenant": tenant,
        "subject": subject,
        "kind": kind,
        "verdict": verdict,
        "failure": failure,
    }
    view = RecordView(
        query=options.record_query(names, trace=trace, since=since, until=until, where=where),
        cause=cause_of(caused_by),
        text=grep,
        limit=limit,
        newest_first=reverse,
        is_followed=follow,
        is_counted=count,
        keys=sum_keys(count_by),
        form=output_form(output),
    )
    view.check()
    print_view(options.logs_of(store), view)

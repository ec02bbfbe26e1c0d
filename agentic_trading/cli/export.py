"""`audit export`, and the check of an export by `audit verify`."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cli.exits import ExitCode, say
from agentic_trading.cli.options import AsJson

ExportedLog = Annotated[Path, typer.Argument(metavar="PATH", help="A log, or the folder of a session.")]
To = Annotated[
    Path | None,
    typer.Option("--to", metavar="DIR", help="Folder of the export, created if missing.  [required]"),
]
Format = Annotated[str, typer.Option("--format", metavar="NAME", help="parquet, jsonl or csv.")]
PartitionBy = Annotated[
    str,
    typer.Option(
        "--partition-by",
        metavar="KEYS",
        help="Comma-separated keys of the folders: day, tenant.  [default: no folders]",
        show_default=False,
    ),
]
OfOneTenant = Annotated[
    str | None,
    typer.Option(
        "--tenant", metavar="ID", help="Export only records of this tenant.  [default: all tenants]"
    ),
]
WithLines = Annotated[
    bool, typer.Option("--with-lines", help="Add the line of each record, to check its hash.")
]
WithProofs = Annotated[
    bool, typer.Option("--with-proofs", help="Add files with an inclusion proof of each record.")
]
IncludeActive = Annotated[
    bool,
    typer.Option("--include-active", help="Also export the active segment, and replace its earlier export."),
]
ExportFolder = Annotated[
    Path | None,
    typer.Option("--export", metavar="DIR", help="Check this export instead of a log. The log is not read."),
]
SealsFile = Annotated[
    Path | None,
    typer.Option(
        "--seals",
        metavar="FILE",
        help="With --export: a trusted copy of the log's file of seals.  [default: those in DIR]",
    ),
]


def export_command(
    path: ExportedLog,
    *,
    to: To = None,
    format_: Format = "parquet",
    partition_by: PartitionBy = "",
    tenant: OfOneTenant = None,
    with_lines: WithLines = False,
    with_proofs: WithProofs = False,
    include_active: IncludeActive = False,
    as_json: AsJson = False,
) -> None:
    """Export the records of a log for DuckDB, Spark, Trino or ClickHouse: one file for each sealed segment.

    Run it again to add new segments. Exported segments are skipped. Requires the extra [export].
    """
    from agentic_trading.cli.output import show_json
    from agentic_trading.cli.settings import start

    start()
    from dataclasses import asdict

    from agentic_trading.errors import require_extra
    from agentic_trading.llm.store import LOG_NAME
    from agentic_trading.operate.choices import pluralize
    from agentic_trading.platform.errors import OptionError

    require_extra("duckdb")
    from agentic_trading.platform.log_segments import export_at, options_of

    if to is None:
        raise OptionError("--to", "missing", "the folder of the export")
    options = options_of(format_, partition_by, tenant, with_lines=with_lines, with_proofs=with_proofs)
    log = path / LOG_NAME if path.is_dir() else path
    done = export_at(log, to, options, include_active=include_active)
    if as_json:
        show_json(asdict(done))
        return
    new, records = pluralize(done.segments, "segment"), pluralize(done.records, "record")
    say(f"Exported {new} ({records}, {pluralize(done.files, 'file')}) to {to}. {done.known} exported before.")
    for note in done.notes:
        say(f"Note: {note}")


def verify_export(folder: Path, seals: Path | None, *, as_json: bool) -> None:
    """Check an export, and exit with 1 if it is incomplete or was changed."""
    from agentic_trading.errors import require_extra

    require_extra("duckdb")
    from agentic_trading.audit.export_check import check_export
    from agentic_trading.cli.output import show_json
    from agentic_trading.operate.choices import pluralize
    from agentic_trading.platform.log_segments import trusted_seals

    found = check_export(folder, None if seals is None else trusted_seals(seals))
    if as_json:
        show_json({"verdict": "broken" if found.findings else "whole", **found.model_dump(mode="json")})
    else:
        say("broken" if found.findings else "whole")
        say(
            f"{pluralize(found.records, 'record')} of {pluralize(found.segments, 'sealed segment')} verified in {folder}"
        )
        for finding in found.findings:
            say(f"{finding.file}: {f'line {finding.line}: ' if finding.line else ''}{finding.reason}")
        for note in found.notes:
            say(f"Note: {note}")
    if found.findings:
        raise typer.Exit(ExitCode.FOUND_WRONG)

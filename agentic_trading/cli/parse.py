"""`agentic-trading parse`: parse raw answers of a model, or reject them with a reason."""

import sys
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from agentic_trading.cli.exits import ExitCode, stop

SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema", metavar="FILE", help="JSON Schema of the answer.  [default: accept any JSON document]"
    ),
]
Workflow = Annotated[
    Literal["analysis", "planning", "execution", "general"] | None,
    typer.Option("--workflow", help="Parse with the preset of this workflow."),
]
Mode = Annotated[
    Literal["native", "lossless", "reask", "salvage"] | None,
    typer.Option(
        "--mode",
        help="native accepts only strict JSON. lossless repairs unambiguous syntax errors. reask parses like lossless, "
        "where a model would be asked again. salvage takes the last object that fits, and guesses.  "
        "[default: the workflow's, or lossless]",
    ),
]
StopReason = Annotated[
    str,
    typer.Option("--stop-reason", metavar="REASON", help="Stop reason, as the provider reports it."),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Print on standard error, as JSON, how the answer was parsed, and the text of a re-ask.",
    ),
]
Jsonl = Annotated[
    bool,
    typer.Option(
        "--jsonl",
        help="Parse one record per line, and print one result per line. A record is "
        '{"id", "raw", "schema"?, "mode"?, "stop_reason"?, "output_tokens"?, "max_tokens"?}.',
    ),
]
SchemaDir = Annotated[
    Path | None,
    typer.Option("--schemas", metavar="DIR", help="Folder with the schemas that records of --jsonl name."),
]


def parse_command(
    *,
    schema: SchemaFile = None,
    workflow: Workflow = None,
    mode: Mode = None,
    stop_reason: StopReason = "end_turn",
    explain: Explain = False,
    jsonl: Jsonl = False,
    schemas: SchemaDir = None,
) -> None:
    """Parse a model's raw answer from standard input, and print the object.

    Standard output has only the object. If the answer is rejected, the exit code is 1, and standard error has
    the stage and each error with its path.
    """
    from agentic_trading.cli import parse_answers
    from agentic_trading.cli.settings import start
    from agentic_trading.platform.errors import OptionError

    start()
    policy = parse_answers.policy_of(workflow, mode)
    try:
        answer_schema = None if schema is None else parse_answers.read_schema(schema)
    except ValueError as e:
        raise OptionError("--schema", f"{schema}, which {e}", "a file with one JSON object") from e
    if jsonl and explain:
        allowed = "only without --jsonl, whose results list their fixes"
        raise OptionError("--explain", "given with --jsonl", allowed)
    if schemas is not None and not jsonl:
        raise OptionError("--schemas", "given without --jsonl", "--schema FILE for a single answer")
    if jsonl:
        defaults = parse_answers.ParseDefaults(
            workflow, mode, stop_reason, answer_schema, parse_answers.SchemaFolder(schemas)
        )
        code = parse_answers.answer_records(_piped(), defaults)
    else:
        question = parse_answers.ParseQuestion(policy=policy, schema=answer_schema, stop_reason=stop_reason)
        code = parse_answers.answer_one(_piped(), question, explain=explain)
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


def _piped() -> BinaryIO:
    """Return standard input. End the command if it is a terminal or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        stop(
            ExitCode.BAD_INPUT,
            "no answer on standard input. Example: agentic-trading parse --schema FILE < raw.txt",
        )
    return sys.stdin.buffer

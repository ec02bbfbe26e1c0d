"""`agentic-trading parse`: raw answers of a model to objects, or to verdicts that say why not."""

import sys
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from agentic_trading.cli.exits import ExitCode, stop

SchemaFile = Annotated[
    Path | None,
    typer.Option(
        "--schema", metavar="FILE", help="The JSON Schema of the answer; without it, any JSON document."
    ),
]
Workflow = Annotated[
    Literal["analysis", "planning", "execution", "general"] | None,
    typer.Option("--workflow", help="Read as this workflow's preset does."),
]
Mode = Annotated[
    Literal["native", "lossless", "reask", "salvage"] | None,
    typer.Option(
        "--mode",
        help="How to read: native takes strict JSON only; lossless repairs unambiguous syntax errors; reask is the "
        "same, where a model would be asked again; salvage takes the last object that fits, and guesses.  "
        "[default: the workflow's, else lossless]",
    ),
]
StopReason = Annotated[
    str,
    typer.Option("--stop-reason", metavar="REASON", help="Why the model stopped, in its provider's word."),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain", help="Print on standard error how it was read, as JSON, and what a re-ask would say."
    ),
]
Jsonl = Annotated[
    bool,
    typer.Option(
        "--jsonl",
        help="Read a record a line, write a line for each: "
        '{"id", "raw", "schema"?, "mode"?, "stop_reason"?, "output_tokens"?, "max_tokens"?}.',
    ),
]
SchemaDir = Annotated[
    Path | None,
    typer.Option("--schemas", metavar="DIR", help="The folder of the schemas that records of --jsonl name."),
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
    """Read a model's raw answer from standard input and print the object, or say why it is none.

    The object alone goes to standard output. An answer that is not accepted ends with exit code 1; its stage, and what is
    wrong where, then stand on standard error.
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
        allowed = "one answer at a time; each line names its fixes"
        raise OptionError("--explain", "given with --jsonl", allowed)
    if schemas is not None and not jsonl:
        raise OptionError("--schemas", "given without --jsonl", "--schema FILE for one answer")
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
    """Return standard input, unless it is a terminal or closed."""
    if sys.stdin is None or sys.stdin.isatty():
        stop(ExitCode.BAD_INPUT, "nothing is piped in; try: agentic-trading parse --schema FILE < raw.txt")
    return sys.stdin.buffer

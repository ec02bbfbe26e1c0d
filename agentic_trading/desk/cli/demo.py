"""The steps of `agentic-trading demo`: a fill explained, a log tampered with, a run repeated, an order truncated."""

from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from rich.table import Table
from rich.text import Text

from agentic_trading.audit.trace import why
from agentic_trading.audit.verify import LogReport, verify_log
from agentic_trading.cancellation import run_async
from agentic_trading.canonical import exact_bytes
from agentic_trading.cli.chains import path_of
from agentic_trading.cli.output import ask_log, command_line, heading, paragraph, print_table
from agentic_trading.desk.analysis.analyst import CMT_ASSESSMENT_PROMPT
from agentic_trading.desk.cli.run_output import no_bar
from agentic_trading.desk.cli.summary import comparison
from agentic_trading.desk.session.options import RunOptions
from agentic_trading.desk.session.replay import replay
from agentic_trading.desk.session.report import RunReport
from agentic_trading.desk.session.run import run_session
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.platform.port_adapters import records_of
from agentic_trading.structured.engine import read
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.validation import validate

BARS: Final = 600
SEED: Final = "5"
"""One with which an answer is malformed, and an order is filled all the same."""
OTHER_WORD: Final = "They"
"""What the second step puts in the place of the first word of the analyst's instructions."""


def show_steps(folder: Path) -> bool:
    """Make a session in `folder` and print every step; True if all came out as their texts say."""
    options = RunOptions(
        data=("btcusdt-5m",), out=folder / "session", bars=BARS, inject="malformed=10%", seed=SEED
    )
    with no_bar() as on_progress:
        report = run_async(run_session(options, on_progress=on_progress))
    malformed = sum(report.injected["malformed"].values())
    print_table(
        Text("A session of its own", "bold"),
        paragraph(
            f"{BARS} five-minute bars of BTCUSDT; rules answer, and one answer in ten is malformed on purpose. "
            f"Attempts: {report.attempts}, of them malformed: {malformed}, orders: {report.orders}, "
            f"fills: {report.fills}; {report.elapsed_s:.1f} s."
        ),
    )
    return (
        show_why(report, folder / "tampered.jsonl")
        and show_replay(folder / "session")
        and show_truncated_order()
    )


def show_why(report: RunReport, copy: Path) -> bool:
    """Print why the first fill was, and that a changed byte in a copy of the log is found."""
    fill_id = report.first_fill_id
    print_table(
        heading("Step 1: why this order"),
        command_line(f"agentic-trading trace why {fill_id} --store SESSION"),
        Text(),
        path_of(ask_log(report.log, lambda records: why(records, fill_id))),
    )
    change = tamper(report.log, copy, fill_id)
    original, tampered = _verified(report.log), _verified(copy)
    print_table(
        Text(),
        paragraph(
            f"Now one byte of line {change.line} is changed in a copy of the log: the price of this fill, "
            f"{change.before}, becomes {change.after}."
        ),
        paragraph(f"The log:  {original.finding}.", "green"),
        paragraph(f"The copy: {tampered.finding}.", "red"),
    )
    return original.is_whole and tampered.verification.broken_line == change.line


@dataclass(frozen=True, slots=True)
class TamperedLog:
    """What was changed in a copy of a log: a price in a line."""

    line: int
    before: str
    after: str


def tamper(log: Path, copy: Path, fill_id: str) -> TamperedLog:
    """Write a copy of a log in which one digit of a fill's price is another one."""
    lines = log.read_bytes().split(b"\n")
    mark = f'"fill_id":"{fill_id}"'.encode()
    place = next(number for number, line in enumerate(lines) if mark in line)
    head, name, tail = lines[place].partition(b'"price":"')
    price = tail.partition(b'"')[0]
    changed = price[:-1] + (b"1" if price.endswith(b"0") else b"0")
    lines[place] = head + name + changed + tail[len(price) :]
    copy.write_bytes(b"\n".join(lines))
    return TamperedLog(place + 1, price.decode(), changed.decode())


def _verified(log: Path) -> LogReport:
    async def verified() -> LogReport:
        async with aclosing(records_of(log)) as records:
            return await verify_log(records)

    return run_async(verified())


def show_replay(session: Path) -> bool:
    """Print that a replay is identical, and where it differs after one word of a prompt was changed."""
    print_table(
        heading("Step 2: the same run again, without a network"),
        command_line("agentic-trading replay run SESSION --workers 8"),
        Text(),
    )
    same = run_async(replay(session, workers=8))
    word = CMT_ASSESSMENT_PROMPT.text.partition(" ")[0]
    print_table(
        comparison(same),
        Text(),
        paragraph(f'Now with one word of the analyst\'s prompt changed, "{word}" to "{OTHER_WORD}":'),
        Text(),
    )
    changed = run_async(replay(session, workers=8, edit=with_another_word))
    print_table(comparison(changed))
    names_the_word = any(OTHER_WORD in change for change in changed.request_changes)
    return same.identical and not changed.identical and names_the_word


def with_another_word(envelope: LLMEnvelope) -> LLMEnvelope:
    """Return the analyst's envelope with the first word of its instructions changed, any other one as it is."""
    if envelope.workflow is not EnvelopeWorkflow.ANALYSIS:
        return envelope
    rest = envelope.instructions.partition(" ")[2]
    return envelope.model_copy(update={"instructions": f"{OTHER_WORD} {rest}"})


ORDER: Final = (
    '{"symbol": "BTCUSDT", "side": "BUY", "qty": 0.15, "limit_price": 42500.5, "reduce_only": true, '
    '"stop_loss": 41200, "veto": false, "note": "Above the weekly pivot; stop below the last swing low."}'
)
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "symbol": {"type": "string"},
        "side": {"enum": ["BUY", "SELL"]},
        "qty": {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        "limit_price": {"type": "number", "exclusiveMinimum": 0},
        "reduce_only": {"type": "boolean"},
        "stop_loss": {"type": "number", "exclusiveMinimum": 0},
        "veto": {"type": "boolean"},
        "note": {"type": "string"},
    },
    "required": ["symbol", "side", "qty"],
    "additionalProperties": False,
}
TRUNCATED: Final = ORDER[: ORDER.index("0.15") + len("0.1")]
REPAIRED: Final = {"symbol": "BTCUSDT", "side": "BUY", "qty": 0.1}
"""What json-repair 0.64.5 makes of the truncated order: a test compares it with what it does make."""
REPAIRED_PLACES: Final = 131
"""Truncated at this many places, the order is to json-repair 0.64.5 one that fits the schema and is wrong."""


def show_truncated_order() -> bool:
    """Truncate an order at every place and read what is left; True if nothing of it is accepted."""
    outcome = _read(TRUNCATED)
    accepted = sum(isinstance(_read(ORDER[:place]), Accepted) for place in range(len(ORDER)))
    repaired, places, source = json_repair_result()
    verdict = f"{outcome.trace.verdict}: {outcome.errors[0].message}" if isinstance(outcome, Rejected) else ""
    labelled = Table.grid(padding=(0, 2, 0, 0))
    for label, text, style in (
        ("the model meant", ORDER, ""),
        ("what arrived", TRUNCATED, ""),
        ("json-repair reads", orjson.dumps(repaired).decode(), "red"),
        ("", "a valid order by its schema, for another quantity, without its stop", ""),
        ("this package reads", verdict, "green"),
    ):
        labelled.add_row(f"  {label}", Text(text, style))
    print_table(
        heading("Step 3: a truncated order"),
        labelled,
        Text(),
        paragraph(
            f"Truncated at each of its {len(ORDER)} places, json-repair makes {places} valid orders that the model "
            f"did not mean {source}; accepted here: {accepted}."
        ),
    )
    return accepted == 0 and isinstance(_read(ORDER), Accepted) and isinstance(outcome, Rejected)


def _read(text: str) -> Accepted | Rejected:
    response = ModelResponse(text=text, stop_reason="end_turn", usage=Usage(), model="demo")
    return read(response, SCHEMA, output_policy())


def json_repair_result() -> tuple[Any, int, str]:
    """Return what json-repair makes of the truncated order, at how many places it fits, and when that was measured."""
    try:
        import json_repair
    except ImportError:
        return REPAIRED, REPAIRED_PLACES, "(version 0.64.5, measured before; it is not installed here)"
    guesses = [json_repair.loads(ORDER[:place]) for place in range(len(ORDER))]
    meant = orjson.loads(ORDER)
    wrong = [guess for guess in guesses if guess != meant and isinstance(guess, dict) and _fits(guess)]
    return json_repair.loads(TRUNCATED), len(wrong), "(measured now)"


def _fits(guess: Any) -> bool:
    return not validate(orjson.loads(exact_bytes(guess)), SCHEMA)

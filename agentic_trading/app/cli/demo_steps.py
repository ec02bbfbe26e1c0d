"""The acts of the demo, each on the session that the overture makes."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from rich.table import Table
from rich.text import Text

from agentic_trading.app.cli.chains import path_of
from agentic_trading.app.cli.output import ask_log, command_line, facts, heading, paragraph, print_table, usd
from agentic_trading.app.cli.run_output import no_bar
from agentic_trading.app.cli.summary import comparison
from agentic_trading.app.crash.proof import CrashReport, killed_in_mid_call
from agentic_trading.app.options import RunOptions
from agentic_trading.app.replay import ReplayReport, replay
from agentic_trading.app.report import RunReport
from agentic_trading.app.run import run_session
from agentic_trading.app.wire import records_of
from agentic_trading.audit.trace import why
from agentic_trading.audit.verify import LogReport, verify_log
from agentic_trading.canonical import exact_bytes
from agentic_trading.desk.analysis.analyst import CMT_ASSESSMENT_PROMPT
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.structured.engine import read
from agentic_trading.structured.outcome import Accepted, Rejected
from agentic_trading.structured.validation import validate

BARS: Final = 600
SEED: Final = "5"
"""One with which an answer is broken, and an order is filled all the same."""
OTHER_WORD: Final = "They"
"""What the second act puts in the place of the first word of the analyst's instructions."""


def overture(session: Path) -> RunReport:
    """Make a short session and tell what it came to."""
    options = RunOptions(data=("btcusdt-5m",), out=session, bars=BARS, inject="malformed=10%", seed=SEED)
    with no_bar() as on_progress:
        report = asyncio.run(run_session(options, on_progress=on_progress))
    broken = sum(report.injected["malformed"].values())
    print_table(
        Text("A session of its own", "bold"),
        paragraph(
            f"{BARS} five-minute bars of BTCUSDT; rules answer, and one answer in ten is broken on purpose. "
            f"Attempts: {report.attempts}, of them broken: {broken}, orders: {report.orders}, fills: {report.fills}; "
            f"{report.elapsed_s:.1f} s."
        ),
    )
    return report


def why_this_order(report: RunReport, forged: Path) -> bool:
    """Tell why the first fill was; then change it in a copy of the log, and find the change. True if all was found."""
    fill_id = report.first_fill_id
    print_table(
        heading("Act 1: why this order?"),
        command_line(f"agentic-trading trace why {fill_id} --store SESSION"),
        Text(),
    )
    answer = ask_log(report.log, lambda records: why(records, fill_id))
    print_table(path_of(answer))
    forgery = forge(report.log, forged, fill_id)
    honest, dishonest = _verified(report.log), _verified(forged)
    print_table(
        Text(),
        paragraph(
            f"Now somebody changes the price of this fill in a copy of the log: one byte of line {forgery.line}, "
            f"{forgery.before} becomes {forgery.after}."
        ),
        paragraph(f"The log:  {honest.finding}.", "green"),
        paragraph(f"The copy: {dishonest.finding}.", "red"),
    )
    return honest.is_whole and dishonest.verification.broken_line == forgery.line


@dataclass(frozen=True, slots=True)
class TamperedLog:
    """What was changed in a copy of a log: a price in a line."""

    line: int
    before: str
    after: str


def forge(log: Path, copy: Path, fill_id: str) -> TamperedLog:
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

    return asyncio.run(verified())


def again(session: Path) -> bool:
    """Replay the session with 8 workers; then with one word of a prompt changed. True if both came out as meant."""
    print_table(
        heading("Act 2: again"), command_line("agentic-trading replay run SESSION --workers 8"), Text()
    )
    same = asyncio.run(replay(session, workers=8))
    print_table(comparison(same))
    word = CMT_ASSESSMENT_PROMPT.text.partition(" ")[0]
    print_table(
        Text(),
        paragraph(f'Now with one word of the analyst\'s prompt changed, "{word}" to "{OTHER_WORD}":'),
        Text(),
    )
    changed = asyncio.run(replay(session, workers=8, edit=with_another_word))
    print_table(comparison(changed))
    return same.identical and _names_the_word(changed)


def with_another_word(asked: LLMEnvelope) -> LLMEnvelope:
    """Return the analyst's envelope with the first word of its instructions changed, any other one as it is."""
    if asked.workflow is not EnvelopeWorkflow.ANALYSIS:
        return asked
    rest = asked.instructions.partition(" ")[2]
    return asked.model_copy(update={"instructions": f"{OTHER_WORD} {rest}"})


def _names_the_word(report: ReplayReport) -> bool:
    return not report.identical and any(OTHER_WORD in change for change in report.request_changes)


def a_killed_call(folder: Path) -> bool:
    """Kill a worker with calls under way, and compare the provider's invoice with its log; True if they agree."""
    folder.mkdir()
    proof = asyncio.run(killed_in_mid_call(folder))
    print_table(
        heading("Act 4: kill -9 in the middle of a call"),
        paragraph(
            "A worker makes orders' calls, four at once, to a stub that bills each request as it comes. Then it is killed "
            "while it waits for answers. The stub's own invoice, and what the worker's log says:"
        ),
        Text(),
        facts(_lines(proof)),
        Text(),
        paragraph(
            "Nothing was billed that the log does not list: what is in doubt is charged in full until it is known.",
            "green",
        )
        if proof.holds
        else paragraph("The invoice and the log do not agree.", "red"),
    )
    return proof.holds


def _lines(proof: CrashReport) -> list[tuple[str, str]]:
    billed = sum(nusd for name, nusd in proof.invoice.items() if name in proof.in_doubt)
    return [
        ("invoice", _sum(proof.invoice)),
        ("settled in the log", _sum(proof.settled)),
        ("in doubt in the log", f"{_sum(proof.in_doubt)}: {', '.join(sorted(proof.in_doubt))}"),
        (
            "of these the invoice has",
            f"{usd(billed)} USD, which with what was settled makes the whole invoice",
        ),
    ]


def _sum(by_call: dict[str, int]) -> str:
    return f"{len(by_call):>2} calls, {usd(sum(by_call.values()))} USD"


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
CUT_AT: Final = ORDER.index("0.15") + len("0.1")
REPAIRED: Final = {"symbol": "BTCUSDT", "side": "BUY", "qty": 0.1}
"""What json-repair 0.64.5 makes of the cut order: a test compares it with what it does make."""
REPAIRED_CUTS: Final = 131
"""At how many of the places json-repair 0.64.5 makes an object of the cut order that fits the schema and is wrong."""


def a_cut_order() -> bool:
    """Cut an order at every place and read what is left; True if nothing of it is taken for an order."""
    cut = ORDER[:CUT_AT]
    outcome = _read(cut)
    cuts = range(len(ORDER))
    taken = sum(isinstance(_read(ORDER[:place]), Accepted) for place in cuts)
    repaired, repaired_cuts, source = _repaired(cut)
    lines = (
        ("the model meant", ORDER, ""),
        ("what arrived", cut, ""),
        ("json-repair reads", orjson.dumps(repaired).decode(), "red"),
        ("", "a valid order by its schema, for another quantity, without its stop", ""),
        ("this package reads", _verdict(outcome), "green"),
    )
    print_table(
        heading("Act 3: an answer that was cut off"),
        _labelled(lines),
        Text(),
        paragraph(
            f"Cut at each of its {len(cuts)} places, json-repair makes {repaired_cuts} valid orders that nobody meant "
            f"{source}; taken here: {taken}."
        ),
    )
    return taken == 0 and isinstance(_read(ORDER), Accepted) and isinstance(outcome, Rejected)


def _labelled(lines: Iterable[tuple[str, str, str]]) -> Table:
    """Return texts beside their labels, each in its style."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    for label, text, style in lines:
        grid.add_row(f"  {label}", Text(text, style))
    return grid


def _read(text: str) -> Accepted | Rejected:
    response = ModelResponse(text=text, stop_reason="end_turn", usage=Usage(), model="demo")
    return read(response, SCHEMA, output_policy())


def _verdict(outcome: Accepted | Rejected) -> str:
    if isinstance(outcome, Accepted):
        return outcome.text
    return f"{outcome.trace.verdict}: {outcome.errors[0].message}"


def _repaired(cut: str) -> tuple[Any, int, str]:
    """Return what json-repair makes of the cut order and how often it fits: now if it is here, else as it was measured."""
    try:
        import json_repair
    except ImportError:
        return REPAIRED, REPAIRED_CUTS, "(version 0.64.5, measured before; it is not installed here)"
    guesses = [json_repair.loads(ORDER[:place]) for place in range(len(ORDER))]
    meant = orjson.loads(ORDER)
    wrong = [guess for guess in guesses if guess != meant and isinstance(guess, dict) and _fits(guess)]
    return json_repair.loads(cut), len(wrong), "(measured now)"


def _fits(guess: Any) -> bool:
    return not validate(orjson.loads(exact_bytes(guess)), SCHEMA)

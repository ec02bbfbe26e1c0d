"""The acts of the demo, each on the session that the overture makes."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.text import Text

from agentic_trading.app.cli.chains import path_of
from agentic_trading.app.cli.replay_text import comparison
from agentic_trading.app.cli.output import command_line, heading, paragraph, print_table
from agentic_trading.app.cli.progress import no_bar
from agentic_trading.app.cli.log_query import ask_log
from agentic_trading.app.options import RunOptions
from agentic_trading.app.replay import ReplayReport, replay
from agentic_trading.app.report import RunReport
from agentic_trading.app.run import run_session
from agentic_trading.app.wire import records_of
from agentic_trading.audit.verify import LogReport, verify_log
from agentic_trading.audit.causal_path import why
from agentic_trading.desk.analysis.prompts import CMT_ASSESSMENT_PROMPT
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope

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
    print_table(heading("Act 2: again"), command_line("agentic-trading replay run SESSION --workers 8"), Text())
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

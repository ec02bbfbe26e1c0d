"""The fourth act of the demo: a worker killed in the middle of its calls, and the bill."""

import asyncio
from pathlib import Path

from rich.text import Text

from agentic_trading.app.cli.output import facts, heading, paragraph, print_table, usd
from agentic_trading.app.crash.proof import CrashReport, killed_in_mid_call


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

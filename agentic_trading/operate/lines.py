"""Texts for readers: lines without control characters, amounts and times."""

from datetime import datetime
from decimal import Decimal

from agentic_trading.llm.limits import NANO


def printable(text: str) -> str:
    """Return `text` with control characters escaped, because models and feeds are not trusted."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return `text` with control characters escaped, except line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def usd(nusd: int) -> str:
    """Format nano-dollars as dollars, with two decimals from ten dollars on, otherwise six."""
    amount = Decimal(nusd) / NANO
    return f"{amount:,.2f}" if abs(amount) >= 10 else f"{amount:,.6f}"


def format_time(value: datetime | None) -> str:
    """Format a UTC timestamp to the minute. None becomes `-`."""
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M}"

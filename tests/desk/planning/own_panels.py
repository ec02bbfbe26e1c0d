"""Own panels on disk: prices of twelve stocks in several forms, and events of two catalysts."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np

BARS = 300
SYMBOLS = tuple(f"S{place:02d}" for place in range(12))
TERMS = """name = "nordic"
prices = "prices.csv"
events = "events.csv"

[catalysts]
surprise = "earnings above the consensus, as a share of it"
guidance = "1 if the company has raised its guidance"
"""


def weekdays(count: int = BARS) -> list[date]:
    """Return weekdays from a Monday on."""
    days = (date(2021, 1, 4) + timedelta(days=number) for number in range(2 * count))
    return [day for day in days if day.weekday() < 5][:count]


def closes(bars: int = BARS) -> list[list[str]]:
    """Return closes as texts, one row per day."""
    steps = np.random.default_rng(3).normal(0.0005, 0.02, (bars, len(SYMBOLS)))
    return [[f"{each:.4f}" for each in row] for row in 50 * np.exp(np.cumsum(steps, axis=0))]


def long_csv(bars: int = BARS) -> str:
    rows = [
        f"{day},{symbol},{close}"
        for day, row in zip(weekdays(bars), closes(bars), strict=True)
        for symbol, close in zip(SYMBOLS, row, strict=True)
    ]
    return "\n".join(["date,symbol,close", *rows, ""])


def wide_csv(bars: int = BARS) -> str:
    rows = [",".join([str(day), *row]) for day, row in zip(weekdays(bars), closes(bars), strict=True)]
    return "\n".join([",".join(["date", *SYMBOLS]), *rows, ""])


def events_csv(bars: int = BARS) -> str:
    """Return four events of each stock, a quarter of a year apart."""
    days = weekdays(bars)
    rows = [
        f"{days[place]},{symbol},{0.01 * (place % 7 - 2):.2f},{'1' if place % 3 == 0 else ''}"
        for number, symbol in enumerate(SYMBOLS)
        for place in range(5 + number, bars, 63)
    ]
    return "\n".join(["known,symbol,surprise,guidance", *rows, ""])


def write_panel(folder: Path, *, events: str | None = None, terms: str = TERMS) -> Path:
    """Write a folder with prices, events and `panel.toml`."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"prices.csv": long_csv(), "events.csv": events or events_csv(), "panel.toml": terms}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder

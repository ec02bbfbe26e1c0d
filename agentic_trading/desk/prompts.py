"""Building blocks of prompts: versioned instructions, and rounded numbers.

Each version of instructions is a shipped file that is never edited.
"""

from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from math import isfinite

from agentic_trading.canonical import sha256_hex

PRICE_DIGITS = 8
RATIO_DIGITS = 5


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text and its version: the first 16 hex digits of the SHA-256 over its bytes."""

    text: str
    version: str


def load_prompt(package: str, name: str) -> Prompt:
    """Read `prompts/<name>.md` of an agent's package.

    Any changed byte changes the version.
    """
    raw = files(package).joinpath("prompts", f"{name}.md").read_bytes()
    return Prompt(text=raw.decode(), version=sha256_hex(raw)[:16])


def price(value: float | None) -> float | None:
    """Round a price, or a distance between prices, to 8 significant digits."""
    return significant(value, PRICE_DIGITS)


def ratio(value: float | None) -> float | None:
    """Round a ratio, an index or a percentage to 5 significant digits."""
    return significant(value, RATIO_DIGITS)


def significant(value: float | None, digits: int) -> float | None:
    """Round to so many significant digits. None stays None, and -0.0 becomes 0.0.

    Raises:
        ValueError: If the value is not finite.

    """
    if value is None:
        return None
    # The cut digits may differ between machines, because their logarithms and square roots do.
    rounded = float(f"{value:.{digits}g}")
    if not isfinite(rounded):
        raise ValueError(f"a measure is {value}. Allowed: a finite number, or None")
    return rounded + 0.0


def stamp(moment: datetime) -> str:
    """Return a UTC time to the second, for example `2023-03-24T14:05:00Z`."""
    return f"{moment.isoformat()[:19]}Z"

"""Numbers as they are told to a model: short, stable and always finite."""

from datetime import datetime
from math import isfinite

PRICE_DIGITS = 8
RATIO_DIGITS = 5


def price(value: float | None) -> float | None:
    """Round a price, or a distance between prices, to 8 significant digits."""
    return significant(value, PRICE_DIGITS)


def ratio(value: float | None) -> float | None:
    """Round a ratio, an index or a percentage to 5 significant digits."""
    return significant(value, RATIO_DIGITS)


def significant(value: float | None, digits: int) -> float | None:
    """Round to the nearest decimal; None stays None, -0.0 becomes 0.0, and what is not finite raises `ValueError`.

    The digits that are cut are those in which two machines' logarithms and square roots may differ.
    """
    if value is None:
        return None
    rounded = float(f"{value:.{digits}g}")
    if not isfinite(rounded):
        raise ValueError(f"a measure is {value}; allowed: a finite number, or None")
    return rounded + 0.0


def stamp(moment: datetime) -> str:
    """Return a UTC time to the second, such as `2023-03-24T14:05:00Z`."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"

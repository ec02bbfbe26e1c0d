"""The bill that a server reports in its usage, in whole nano-dollars.

A field is read only where its unit is known: by the server's host, by the fields next to it, or by an option.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import ceil, isfinite
from typing import Any, Final, Literal

from agentic_trading.canonical import quoted
from agentic_trading.llm.limits import NANO

BillUnit = Literal["known", "usd", "none"]
"""How `usage.cost` is read: where its unit is known, always in US dollars, or never."""

MOST_BILL_USD: Final = 1_000_000

_HOSTS_IN_USD: Final = ("openrouter.ai", "perplexity.ai")
_TICKS_PER_USD: Final = 10**10
_ALLOWED: Final = f"allowed are numbers from 0 to {MOST_BILL_USD:,} dollars"
_UNKNOWN_UNIT: Final = 'usage.cost has no known unit and is not read; the option bill = "usd" reads it as US dollars, "none" ignores it'


@dataclass(frozen=True, slots=True)
class Bill:
    """What a server says that a call has cost it, None if it does not; `problem` is about what could not be read."""

    nusd: int | None = None
    problem: str = ""


NO_BILL: Final = Bill()


def unit_at(host: str) -> BillUnit:
    """Return how `usage.cost` of a host is read."""
    return "usd" if any(host == one or host.endswith(f".{one}") for one in _HOSTS_IN_USD) else "known"


def bill_of(usage: Any, unit: BillUnit = "known") -> Bill:
    """Return the bill in a usage.

    `cost` is the router's own charge, `cost_details.upstream_inference_cost` that of the provider behind it. With
    `is_byok` both are billed, else the larger one is the bill. Of a cost and the sum of its parts the larger one counts.
    Negative values, NaN and values that are not numbers are ignored and named in `problem`.
    """
    if unit == "none" or not isinstance(usage, Mapping):
        return NO_BILL
    reader = _Reader()
    ticks = reader.amount("usage.cost_in_usd_ticks", usage.get("cost_in_usd_ticks"), _TICKS_PER_USD)
    own = _own(reader, usage, unit)
    upstream = _upstream(reader, usage.get("cost_details"))
    costs = [cost for cost in (own, upstream) if cost is not None]
    if not (usage.get("is_byok") is None or usage.get("is_byok") is False):
        costs = [sum(costs, Fraction())] if costs else []
    found = max([*costs, *([] if ticks is None else [ticks])], default=None)
    return Bill(None if found is None else ceil(found * NANO), "; ".join(reader.problems))


def _own(reader: "_Reader", usage: Mapping[str, Any], unit: BillUnit) -> Fraction | None:
    cost = usage.get("cost")
    if isinstance(cost, Mapping):  # Perplexity's form, which names its unit by its `total_cost`
        if unit != "usd" and "total_cost" not in cost:
            reader.skip()
            return None
        parts = [name for name in cost if name.endswith("_cost") and name != "total_cost"]
        return reader.larger("usage.cost", cost, "total_cost", parts)
    if unit != "usd" and not {"is_byok", "cost_details"} & usage.keys():
        if cost:
            reader.skip()
        return None
    return reader.amount("usage.cost", cost)


def _upstream(reader: "_Reader", details: Any) -> Fraction | None:
    if not isinstance(details, Mapping):
        return None
    parts = ["upstream_inference_prompt_cost", "upstream_inference_completions_cost"]
    return reader.larger("usage.cost_details", details, "upstream_inference_cost", parts)


class _Reader:
    """Reads amounts in US dollars, and notes those that are none."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def amount(self, place: str, value: Any, per_usd: int = 1) -> Fraction | None:
        """Return an amount exactly as its shortest decimal says; None for one that is missing or not an amount."""
        if value is None:
            return None
        is_number = type(value) is int or (type(value) is float and isfinite(value))
        if is_number:
            usd = Fraction(Decimal(repr(value))) / per_usd
            if 0 <= usd <= MOST_BILL_USD:
                return usd
        self.problems.append(f"{place} is {quoted(value)}; {_ALLOWED}")
        return None

    def larger(self, place: str, costs: Mapping[str, Any], total: str, parts: list[str]) -> Fraction | None:
        """Return the larger of a total and the sum of its parts."""
        split = [self.amount(f"{place}.{name}", costs.get(name)) for name in parts]
        known = [part for part in split if part is not None]
        found = [self.amount(f"{place}.{total}", costs.get(total)), sum(known, Fraction()) if known else None]
        return max((each for each in found if each is not None), default=None)

    def skip(self) -> None:
        """Note a cost whose unit is not known."""
        self.problems.append(_UNKNOWN_UNIT)

"""The load that budgets are tried with: how many calls, what each may cost, what each really costs.

It needs nothing but the standard library: every contender's environment reads it.
"""

from dataclasses import dataclass
from random import Random

NUSD_PER_TOKEN = 20_000
"""What a token of output costs: 20 dollars a million. Input is free, so that everybody reserves the same."""
NANO = 10**9
BUDGET_NUSD = 100 * NANO
MODEL = "bench-1"
"""The name under which a contender that looks prices up finds this one."""


@dataclass(frozen=True)
class Load:
    """Calls that may use up to `cap` tokens each and use from `least` tokens on, evenly spread, and never all: that would be a cut answer."""

    name: str
    cap: int
    least: int

    @property
    def most_nusd(self) -> int:
        """What a call costs at most: what is reserved for it."""
        return self.cap * NUSD_PER_TOKEN

    def used(self, call: str) -> int:
        """Return how many tokens a call uses: chance that is the same for every contender."""
        return Random(f"{self.name}:{call}").randint(self.least, self.cap - 1)  # noqa: S311 - no secret


CENTS = Load("cents", cap=1_000, least=100)
DOLLARS = Load("dollars", cap=64_000, least=1)
DEAR = Load("dear", cap=128_000, least=32_000)
"""Each call costs 1.60 dollars in the middle: more than a peer's own estimate of a call, where that is one dollar."""
LOADS = {load.name: load for load in (CENTS, DOLLARS, DEAR)}


def billed_as(call: str, attempt: int) -> str:
    """Return the id under which the invoice has an attempt at a call: the first one has the call's own."""
    return call if attempt == 1 else f"{call}.{attempt}"

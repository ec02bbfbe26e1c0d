"""The cost of inference in the quote currency of a session, and the P&L net of it."""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Self

from agentic_trading.desk.instrument import EXACT, USDT, ZERO
from agentic_trading.llm.limits import NANO
from agentic_trading.platform.errors import OptionError

DOLLARS: Final = ("USD", USDT)
"""Quote currencies that count as US dollars without a given rate."""

_RATE: Final = re.compile(r"USD([A-Z]{3,8})=([0-9]{1,12}(?:\.[0-9]{1,12})?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class InferenceRate:
    """The price of one US dollar in a quote currency, because inference is charged in dollars.

    Attributes:
        currency: The quote currency.
        per_usd: The units of it for one dollar, above 0.

    """

    currency: str
    per_usd: Decimal

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a rate such as `USDEUR=0.91`.

        Raises:
            ValueError: If the text is not a rate, or the rate is 0.

        """
        found = _RATE.fullmatch(text)
        if found is None or not Decimal(found[2]):
            raise ValueError(f"{text!r} is not a rate of one US dollar. Use a rate such as USDEUR=0.91.")
        return cls(found[1], Decimal(found[2]))

    @property
    def name(self) -> str:
        """The pair, such as `USDEUR`."""
        return f"USD{self.currency}"

    @property
    def text(self) -> str:
        """The rate as `parse` reads it."""
        return f"{self.name}={self.per_usd:f}"

    def cost(self, cost_nusd: int) -> Decimal:
        """Return a cost of `cost_nusd` nano-dollars in the quote currency, exactly."""
        return EXACT.multiply(EXACT.divide(cost_nusd, NANO), self.per_usd)

    def net(self, pnl: Decimal, cost_nusd: int) -> Decimal:
        """Return a P&L in the quote currency, less the cost of its inference."""
        return EXACT.subtract(pnl, self.cost(cost_nusd))


@dataclass(frozen=True, slots=True)
class InferenceGate:
    """The conditions on the result of a run, for its exit code.

    Attributes:
        min_net_pnl: The least P&L net of inference, in the quote currency.
        max_share: The largest cost of inference, as a share of the P&L before it.

    """

    min_net_pnl: Decimal | None = None
    max_share: Decimal | None = None

    def problems(self, pnl: Decimal, inference: Decimal | None) -> list[str]:
        """Return the broken conditions. Both are broken by a cost that has no rate."""
        if self.min_net_pnl is None and self.max_share is None:
            return []
        if inference is None:
            return ["the cost of inference has no rate. Pass --inference-rate USDEUR=RATE"]
        found, net = [], EXACT.subtract(pnl, inference)
        if self.min_net_pnl is not None and net < self.min_net_pnl:
            found.append(f"the P&L net of inference is {net}, and --min-net-pnl is {self.min_net_pnl}")
        # Because without a profit, there is no sum that a cost could be a share of.
        most = None if self.max_share is None else EXACT.multiply(self.max_share, max(pnl, ZERO))
        if most is not None and inference > most:
            found.append(
                f"inference cost {inference}, more than the share {self.max_share} (--max-inference-share) "
                f"of a P&L of {pnl} before it"
            )
        return found


def rate_for(currency: str, given: InferenceRate | None = None) -> InferenceRate | None:
    """Return the rate for a quote currency: the given one, or 1 for a dollar.

    USDT counts as a dollar. For other currencies no rate is assumed.

    Raises:
        OptionError: If the given rate is for another currency, or a dollar does not cost 1 USD.

    """
    if given is not None:
        is_of_dollar = currency == DOLLARS[0]
        if given.currency != currency or (is_of_dollar and given.per_usd != 1):
            raise OptionError(
                "--inference-rate",
                f"{given.name}={given.per_usd}, and the P&L is in {currency}",
                "no rate" if is_of_dollar else _example(currency),
            )
        return given
    # Other rates are not assumed, because a wrong rate would look like a measured figure.
    return InferenceRate(currency, Decimal(1)) if currency in DOLLARS else None


def _example(currency: str) -> str:
    return (
        f"a rate such as USD{currency}=0.9995, or no rate"
        if currency in DOLLARS
        else f"a rate such as USD{currency}=0.91"
    )

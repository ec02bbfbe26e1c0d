"""What a call is charged for the usage that was reported, whoever served it."""

from collections.abc import Collection
from datetime import datetime

from agentic_trading.governance.errors import UnknownPriceError
from agentic_trading.governance.prices import PriceBook
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import UnknownModelError
from agentic_trading.llm.result import Usage


def charged_models(asked: str, served: str, served_as: Collection[str]) -> frozenset[str]:
    """Return the models whose prices count: the one asked for, and one that served and is not known as the same."""
    return frozenset({asked, served} if served and served not in served_as else {asked})


def cost_of(
    usage: Usage,
    prices: PriceBook,
    provider: LLMProvider,
    models: Collection[str],
    *,
    at: datetime,
    reserved_nusd: int,
) -> tuple[int, bool]:
    """Return the cost in nano-dollars at the dearest of `models`, and whether the book has a price for all of it.

    What has no price costs the whole reservation, at least.
    """
    costs, is_priced = [], True
    for model in models:
        try:
            costs.append(prices.cost_nusd(provider, model, usage, at=at))
        except (UnknownModelError, UnknownPriceError):
            costs.append(reserved_nusd)
            is_priced = False
    return max(costs), is_priced

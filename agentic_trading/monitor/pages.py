"""The pages of a dashboard: our own, and those of installed packages."""

from collections.abc import Sequence
from typing import Final

from agentic_trading.monitor.budgets import BudgetsPage
from agentic_trading.monitor.calls import CallsPage
from agentic_trading.monitor.fleet import FleetPage
from agentic_trading.monitor.page import PAGES, DashboardPage, PageFactory
from agentic_trading.monitor.sources import Sources
from agentic_trading.monitor.traces import TracePage
from agentic_trading.plugins import OfferError, loaded, offers

OWN: Final[Sequence[PageFactory]] = (BudgetsPage, CallsPage, TracePage, FleetPage)
"""Our pages, in the order of the navigation. Those of packages follow."""


def pages_of(sources: Sources) -> list[DashboardPage]:
    """Return all pages of sources. Blocks, because packages are imported.

    Raises:
        OfferError: If a page of a package cannot be used.

    """
    found = [factory(sources) for factory in OWN]
    for offer in offers(PAGES):
        page = loaded(offer)(sources)
        if not isinstance(page, DashboardPage):
            raise OfferError(offer, "returns no page. A page has a name, paths and a method answer")
        taken = {each for other in found for each in (other.name, *other.paths)}
        if doubled := taken & {page.name, *page.paths}:
            raise OfferError(offer, f"has {min(doubled)}, which another page has too. Uninstall one of them")
        found.append(page)
    return found

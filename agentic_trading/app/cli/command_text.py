"""An order given on the command line, and what stands on the board afterwards."""

import asyncio
from pathlib import Path

from agentic_trading.app.budget.commands import execute
from agentic_trading.app.budget.location import BudgetLocationOptions
from agentic_trading.app.cli.budget_tables import orders_in_force
from agentic_trading.app.cli.output import print_table, show_json
from agentic_trading.app.cli.log_selection import log_of
from agentic_trading.app.cli.startup import start
from agentic_trading.app.options import check_ledger_url
from agentic_trading.governance.commands import OperatorCommand


def give_and_tell(
    wanted: OperatorCommand, tenant: str, why: str, store: Path | None, ledger: str | None, *, as_json: bool
) -> None:
    """Give an order, and print what holds for the tenant from now on."""
    where = whereabouts(store, ledger)
    controls = asyncio.run(execute(where, tenant, wanted, why))
    if as_json:
        show_json(controls)
    else:
        print_table(*orders_in_force(where.name, tenant, controls))


def whereabouts(store: Path | None, ledger: str | None) -> BudgetLocationOptions:
    """Return the place that the options, or the environment in their stead, mean: a server goes before a folder.

    Raises `OptionError` where there is none or the address is none, `SettingsError` for a wrong variable.
    """
    url = ledger or (None if store is not None else start().ledger_url)
    if not url:
        return BudgetLocationOptions(log_of(store).parent)
    check_ledger_url(url)
    return BudgetLocationOptions(None, url)

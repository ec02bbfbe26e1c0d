"""The place that a command about budgets means, and the commands of operators to it."""

from contextlib import suppress
from pathlib import Path

from agentic_trading.cancellation import run_async
from agentic_trading.cli.budget_tables import controls_table
from agentic_trading.cli.exits import ExitCode, stop
from agentic_trading.cli.options import log_of
from agentic_trading.cli.output import facts, print_table, show_json
from agentic_trading.cli.settings import configured, start
from agentic_trading.governance.commands import AddHalt, OperatorCommand
from agentic_trading.operate.budgets import BudgetLocationOptions
from agentic_trading.operate.choices import check_ledger_url
from agentic_trading.operate.live_places import live_place
from agentic_trading.operate.operator_commands import command_values, execute_acknowledged
from agentic_trading.platform.errors import OptionError


def execute_and_print(
    wanted: OperatorCommand,
    tenant: str,
    why: str,
    store: Path | None,
    ledger: str | None,
    *,
    force: bool,
    as_json: bool,
) -> None:
    """Execute a command; print the place, the controls from now on, and the workers that have acknowledged them.

    A halt that no running worker acknowledged ends with an error.
    """
    where = command_location_of(store, ledger)
    config = None if force else configured()
    controls, reach = run_async(execute_acknowledged(where, tenant, wanted, why, config=config))
    if as_json:
        show_json(command_values(controls, reach))
    else:
        found = [("place", reach.place), ("reached", reach.text)]
        print_table(*controls_table(where.name, tenant, controls), facts(found))
    if isinstance(wanted, AddHalt) and not reach.is_complete:
        stop(ExitCode.FOUND_WRONG, reach.problem)


def command_location_of(store: Path | None, ledger: str | None) -> BudgetLocationOptions:
    """Return the place that the options name, else the only live one.

    Raises `OptionError` if none or more than one is live, and what `location_of` raises.
    """
    if store is not None or ledger is not None:
        return location_of(store, ledger)
    settings, config = start(), configured()
    if config.ledger.url is not None:
        check_ledger_url(config.ledger.url)
    named = log_of(None) if settings.store is not None else None
    return live_place(config, settings.runs, named)


def location_of(store: Path | None, ledger: str | None) -> BudgetLocationOptions:
    """Return the place that the options or the configuration name, to look at it: a server goes before a folder.

    Raises `OptionError` without one and for a wrong address, `ConfigError` for a wrong configuration.
    """
    url = ledger or (None if store is not None else configured().ledger.url)
    if not url:
        log = log_of(store)
        return BudgetLocationOptions(log.parent, log=log)
    check_ledger_url(url)
    if store is None and start().store is None:  # the newest session need not be one of this server
        return BudgetLocationOptions(None, url)
    with suppress(OptionError):  # names are then not looked up in a log
        return BudgetLocationOptions(None, url, log_of(store))
    return BudgetLocationOptions(None, url)

"""`agentic-trading dashboard`: pages about budgets and records for a browser."""

from pathlib import Path
from typing import Annotated

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import say
from agentic_trading.cli.options import ConfigFile, log_of

ShownStores = Annotated[
    list[Path] | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="A log, the folder of a session, or a folder of sessions. Can be repeated.  "
        "[default: AGENTIC_STORE, or the newest session in AGENTIC_RUNS if there is no ledger]",
    ),
]
ArchiveFolder = Annotated[
    Path | None, typer.Option("--archive", metavar="DIR", help="The folder of an archive of records.")
]
ShownLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The ledger server that workers share, redis://HOST:PORT.  "
        "[default: AGENTIC_LEDGER_URL or the configuration, without --store]",
    ),
]
ShownBus = Annotated[
    str | None,
    typer.Option(
        "--bus",
        metavar="URL",
        help="The bus, for lag and dead letters: kafka://HOST:PORT or redis://HOST:PORT.  [default: from the configuration]",
    ),
]
PageAddress = Annotated[
    str, typer.Option("--http", metavar="HOST:PORT", help="Address of the pages. Port 0 selects a free port.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token that browsers must enter. Required if --http is not this machine alone.",
    ),
]
OnlyTenant = Annotated[
    str | None,
    typer.Option("--tenant", metavar="ID", help="Show only this tenant.  [default: all tenants]"),
]


def dashboard_command(
    *,
    store: ShownStores = None,
    archive: ArchiveFolder = None,
    ledger: ShownLedger = None,
    bus: ShownBus = None,
    config: ConfigFile = None,
    http: PageAddress = "127.0.0.1:8765",
    token_file: TokenFile = None,
    tenant: OnlyTenant = None,
) -> None:
    """Serve pages about budgets, calls and workers for a browser, until Ctrl-C.

    The pages are read-only. Budgets and workers are updated once a second. Other machines can open the pages only
    if --http names an address of this machine, and then browsers must enter a token.
    """
    from agentic_trading.cli.settings import configure_logging, start
    from agentic_trading.monitor.server import serve_dashboard
    from agentic_trading.monitor.sources import SourceOptions
    from agentic_trading.operate.choices import check_ledger_url
    from agentic_trading.platform.settings import load_config

    settings = start()
    given = {"bus": None if bus is None else {"url": bus}}
    loaded = load_config(config, flags={"bus": "--bus"}, **given)
    configure_logging(settings.log_level, settings.log_format, loaded.redaction)
    url = ledger or (None if store else loaded.ledger.url)
    if url is not None:
        check_ledger_url(url)
    stores = store or ([settings.store] if settings.store is not None else [])
    if not stores and url is None and archive is None:
        stores = [log_of(None).parent]
    options = SourceOptions(
        stores=tuple(stores),
        archive=archive,
        ledger_url=url,
        bus=loaded if loaded.bus.url is not None else None,
        tenant=tenant,
    )
    run_async(
        serve_dashboard(
            options, http, token_file, lambda url: say(f"Dashboard: {url}  (Ctrl-C ends it)", err=True)
        )
    )

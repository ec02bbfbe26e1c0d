"""`agentic-trading serve`: an HTTP server for agents that use the SDKs of OpenAI and Anthropic."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from agentic_trading.cancellation import run_async
from agentic_trading.cli.exits import ExitCode, end_within, say
from agentic_trading.cli.options import ConfigFile, RunBus

CLOSES_WITHIN_S = 10.0
"""Seconds for closing the log and the servers after the calls under way."""

Address = Annotated[
    str,
    typer.Option("--http", metavar="HOST:PORT", help="Address of the server. Port 0 selects a free port."),
]
LogFolder = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="DIR", help="Folder of the log.  [default: from the configuration, or runs/server]"
    ),
]
ServedBy = Annotated[
    Literal["recorded"] | None,
    typer.Option(
        "--provider",
        metavar="NAME",
        help="`recorded` serves the answers of a log. Needs --from.  [default: from the configuration]",
    ),
]
From = Annotated[
    Path | None, typer.Option("--from", metavar="PATH", help="The log of a replay, or its folder.")
]
BehindProxy = Annotated[
    bool,
    typer.Option("--behind-proxy", help="Allow other hosts, because a proxy with TLS is in front."),
]
Volatile = Annotated[
    list[str] | None,
    typer.Option(
        "--volatile",
        metavar="REGEX",
        help="A text that differs between runs. A replay also matches requests without it. Repeatable.",
    ),
]
TlsCertificate = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="Certificate of the server, in PEM. Needs --tls-key."),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="The key of the certificate, in PEM.")
]
ServerLedger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The Redis of budgets and claims, redis://HOST:PORT. Needed with --bus.  [default: from the configuration]",
    ),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        "--drain-s", metavar="S", min=0, help="Seconds that calls under way may take to end after a signal."
    ),
]


def serve_command(
    *,
    config: ConfigFile = None,
    http: Address = "127.0.0.1:8088",
    store: LogFolder = None,
    provider: ServedBy = None,
    recording: From = None,
    behind_proxy: BehindProxy = False,
    tls_cert: TlsCertificate = None,
    tls_key: TlsKey = None,
    volatile: Volatile = None,
    bus: RunBus = None,
    ledger: ServerLedger = None,
    drain_s: DrainSeconds = 30.0,
) -> None:
    """Serve chat completions, responses and Messages over HTTP, until SIGTERM or Ctrl-C.

    Agents use the URL as their base URL, and a key of `api-keys create` as their API key. Their requests are
    passed on within the budgets, recorded, and can be replayed. The log has their prompts, and only its owner can
    read it.
    """
    from agentic_trading.cli.settings import configured
    from agentic_trading.platform.errors import OptionError
    from agentic_trading.platform.status_pages import host_and_port
    from agentic_trading.server.serving import ServeOptions, serve_api

    if (provider is None) is not (recording is None):
        option, other = (
            ("--from", "--provider recorded") if provider is None else ("--provider", "--from PATH")
        )
        raise OptionError(option, f"given without {other}", f"both, or neither: {option} needs {other}")
    if volatile and recording is None:
        raise OptionError(
            "--volatile", "given without --from", "--volatile with --provider recorded --from PATH"
        )
    _check_urls(recording, {"--bus": bus, "--ledger": ledger})
    tls_files = None if tls_cert is None or tls_key is None else (tls_cert, tls_key)
    if tls_files is None and (tls_cert or tls_key):
        option, other = ("--tls-cert", "--tls-key") if tls_cert else ("--tls-key", "--tls-cert")
        raise OptionError(option, f"given without {other}", "both, or neither")
    configured(config)
    host, port = host_and_port(http)
    options = ServeOptions(
        config, host, port, store, recording, behind_proxy, drain_s, volatile or (), tls_files, bus, ledger
    )
    with ExitStack() as stack:
        # The log has the prompts of other people's agents.
        stack.callback(os.umask, os.umask(0o077))

        def limit_the_end() -> None:
            stack.callback(end_within(2 * drain_s + CLOSES_WITHIN_S, ExitCode.INTERRUPTED).cancel)

        replayed = run_async(serve_api(options, lambda line: say(line, err=True), limit_the_end))
    if replayed is not None:
        for line in replayed.lines:
            say(line, err=True)
        if replayed.misses:
            raise typer.Exit(ExitCode.FOUND_WRONG)


def _check_urls(recording: Path | None, urls: Mapping[str, str | None]) -> None:
    """Raise `OptionError` if a replay is given the URL of a server, because it runs in one process."""
    from agentic_trading.platform.errors import OptionError

    for option, url in urls.items():
        if url and recording is not None:
            raise OptionError(option, "given with --from", f"{option}, or --provider recorded --from PATH")

"""Commands and renderers of installed packages, our own included."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_trading import plugins
from agentic_trading.audit.trace import EventNode
from agentic_trading.cli import chains
from agentic_trading.cli.commands import COMMANDS
from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm.event import Event
from agentic_trading.operate import trace_lines
from agentic_trading.platform import Platform, PlatformConfig, Ports
from tests.build import event
from tests.cli.conftest import Command
from tests.own_package import forget, install_acme, install_package, loaded_modules
from tests.platform.calls import envelope, scripted

OTHER = '"""Orders of others."""\nNUMBER = 7\ndef run() -> None:\n    print("other")\n'


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder on `sys.path`. Modules loaded from it are forgotten after the test."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(folder))
    trace_lines.renderer_of.cache_clear()
    chains.warn_once.cache_clear()
    yield folder
    trace_lines.renderer_of.cache_clear()
    forget("acme_desk", "other_desk")


def shown(one: Event) -> list[str]:
    """Return the lines of `trace` about an event, without its kind and id."""
    return trace_lines.step_text(EventNode(one), chains.warn_once)


def ordered(size: int = 50) -> Event:
    return event("acme.ordered", body={"size": size})


def test_desk_commands_are_entry_points() -> None:
    offered = {offer.name: offer.module for offer in plugins.offers(COMMANDS)}

    assert offered == {
        "agent": "agentic_trading.desk.cli.agent",
        "data": "agentic_trading.desk.cli.market_data",
        "replay": "agentic_trading.desk.cli.replay",
        "report": "agentic_trading.desk.cli.report",
        "run": "agentic_trading.desk.cli.run",
        "strategy": "agentic_trading.desk.cli.strategy",
    }


def in_one_line(text: str) -> str:
    """Return a text with one space for each gap, because columns are as wide as the longest name."""
    return " ".join(text.split())


def test_help_lists_plugin_command_without_loading(site: Path, command: Command) -> None:
    install_acme(site)

    listed = command("--help")

    assert "acme Show the orders of Acme." in in_one_line(listed.out)
    assert loaded_modules() == set()


@pytest.mark.parametrize("module", ["def run(): ...", "an invalid module", "\0"])
def test_help_lists_undocumented_package_by_name(site: Path, command: Command, module: str) -> None:
    install_package(site, "other-desk", module, commands="other = other_desk:run")

    assert "other From the package other-desk." in in_one_line(command("--help").out)


def test_plugin_command_has_own_help_and_options(site: Path, command: Command) -> None:
    install_acme(site)

    assert command("acme", "--desk", "fx").out == "orders of fx\n"
    assert "Show the orders of one desk of Acme, or of all." in command("acme", "--help").out


def test_plugin_command_disappears_with_the_package(
    site: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_acme(site)
    there = command("acme", "--help")

    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(site)])
    gone = command("acme", "--help")

    assert (there.code, gone.code) == (ExitCode.DONE, ExitCode.BAD_INPUT)
    assert "No such command 'acme'" in gone.err


def test_mistyped_plugin_command_is_suggested(site: Path, command: Command) -> None:
    install_acme(site)

    assert "No such command 'acne'. Did you mean 'acme'" in command("acne").err


def test_gateway_command_takes_precedence_over_plugin(site: Path, command: Command) -> None:
    install_package(site, "other-desk", OTHER, commands="spend = other_desk:run")

    assert "Sum attempts, tokens and cost" in command("spend", "--help").out
    assert (
        "The command spend of the package other-desk is not available: the gateway has a command of this name."
        in " ".join(command("--help").out.split())
    )
    assert loaded_modules("other_desk") == set()


def test_command_in_two_packages_is_refused(site: Path, command: Command) -> None:
    install_acme(site)
    install_package(site, "other-desk", OTHER, commands="acme = other_desk:run")

    ended = command("acme")

    assert ended.code == ExitCode.BAD_INPUT
    assert (
        "acme (agentic_trading.commands) of the package acme-desk is also in other-desk. Uninstall all but one"
        in ended.err
    )
    assert "acme Not available: it is in acme-desk and other-desk." in in_one_line(command("--help").out)
    assert loaded_modules() == loaded_modules("other_desk") == set()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("other_desk:absent", "cannot be loaded (AttributeError: module 'other_desk' has no attribute"),
        ("other_desk:NUMBER", "is neither a function nor a typer.Typer"),
    ],
)
def test_unusable_command_is_refused_with_package(
    site: Path, command: Command, target: str, reason: str
) -> None:
    install_package(site, "other-desk", OTHER, commands=f"other = {target}")

    ended = command("other")

    assert ended.code == ExitCode.BAD_INPUT
    assert f"Error: other (agentic_trading.commands) of the package other-desk {reason}" in ended.err


def test_trace_shows_events_with_plugin_renderer(site: Path, command: Command) -> None:
    install_acme(site)
    asked, log = envelope(), site / "log"

    async def trade() -> None:
        ports = Ports(providers={"scripted": scripted()})
        async with Platform(PlatformConfig(folder=log), ports) as platform:
            await platform.ask(asked)
            await platform.record(
                event(
                    "acme.ordered", body={"size": 50}, trace_id=asked.trace_id, causation_id=asked.envelope_id
                )
            )

    asyncio.run(trade())

    assert "ordered" in command("trace", "list", "--store", log).out
    assert "bought 50" in command("trace", "show", asked.trace_id, "--store", log).out


def test_renderer_shows_unknown_kinds_plainly(site: Path) -> None:
    install_acme(site)

    assert shown(event("acme.moved", body={"to": "b"})) == ["to b"]
    assert trace_lines.chain_outcome([event("acme.moved")], chains.warn_once) == ""


def test_event_without_renderer_is_shown_plainly(site: Path) -> None:
    site.mkdir()

    assert shown(ordered()) == ["size 50"]
    assert trace_lines.chain_outcome([ordered()], chains.warn_once) == ""


def test_kind_named_like_module_is_not_loaded(site: Path) -> None:
    install_acme(site)

    assert shown(event("acme_desk.shown", body={"size": 50})) == ["size 50"]
    assert loaded_modules() == set()


def test_failing_renderer_is_reported_once(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install_acme(site)
    moved = event("acme.ordered", body={"to": "b"})

    assert shown(moved) == shown(moved) == ["to b"]
    assert capsys.readouterr().err == (
        "Warning: the renderer acme failed (KeyError: 'size'). Its events are shown without it.\n"
    )


@pytest.mark.parametrize(
    ("is_acme_installed", "reason"),
    [
        (True, "of the package acme-desk is also in other-desk"),
        (False, "of the package other-desk cannot be loaded (AttributeError"),
    ],
)
def test_unusable_renderer_is_reported_once(
    site: Path, capsys: pytest.CaptureFixture[str], reason: str, *, is_acme_installed: bool
) -> None:
    install_package(site, "other-desk", OTHER, renderers="acme = other_desk:absent")
    if is_acme_installed:
        install_acme(site)

    assert shown(ordered()) == ["size 50"]
    assert shown(ordered(7)) == ["size 7"]
    said = capsys.readouterr().err
    assert said.startswith(f"Warning: acme (agentic_trading.renderers) {reason}")
    assert said.count("Warning") == 1

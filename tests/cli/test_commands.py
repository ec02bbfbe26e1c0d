"""Commands and renderers that installed packages offer, ours among them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentic_trading.audit.trace import EventNode
from agentic_trading.cli.chains import chain_outcome, renderer_of, step_text
from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm.event import Event
from tests.build import event
from tests.cli.conftest import Command
from tests.own_package import MODULE, OFFERS, install_package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder on the path of modules; what was loaded from it is forgotten afterwards."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(str(folder))
    renderer_of.cache_clear()
    yield folder
    renderer_of.cache_clear()
    for name in ("acme_desk", "other_desk"):
        sys.modules.pop(name, None)


def shown(one: Event) -> list[str]:
    """Return what `trace` says of an event, without its kind and id."""
    return step_text(EventNode(one))


def test_a_command_of_a_package_is_listed_without_being_loaded(site: Path, command: Command) -> None:
    install_package(site)

    listed = command("--help")

    assert "acme      Orders of Acme, checked and shown." in listed.out
    assert "acme_desk" not in sys.modules


def test_a_command_of_a_package_runs_with_its_own_help_and_options(site: Path, command: Command) -> None:
    install_package(site)

    assert command("acme", "--name", "w1").out == "orders of w1\n"
    assert "Show the orders of Acme." in command("acme", "--help").out


def test_a_mistyped_command_of_a_package_is_suggested(site: Path, command: Command) -> None:
    install_package(site)

    assert "No such command 'acne'. Did you mean 'acme'" in command("acne").err


def test_a_package_does_not_replace_a_command_of_the_gateway(site: Path, command: Command) -> None:
    install_package(site, offers={"commands": "spend = acme_desk:acme_command"})

    assert "Sum attempts, tokens and cost" in command("spend", "--help").out
    assert "acme_desk" not in sys.modules


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        ("acme = acme_desk:nothing", "cannot be loaded (AttributeError: module 'acme_desk' has no attribute"),
        ("acme = acme_desk:OFFERED", "is no function and no typer.Typer"),
    ],
)
def test_an_offer_that_is_no_command_is_refused_by_its_package(
    site: Path, command: Command, offers: str, says: str
) -> None:
    install_package(site, module=f"{MODULE}\nOFFERED = 7\n", offers={"commands": offers})

    ended = command("acme")

    assert ended.code == ExitCode.BAD_INPUT
    assert f"acme of agentic_trading.commands, which acme-desk offers, {says}" in ended.err


def test_a_command_that_two_packages_offer_is_refused(site: Path, command: Command) -> None:
    install_package(site)
    install_package(site, "other-desk", offers={"commands": "acme = other_desk:acme_command"})

    ended = command("acme")

    assert "which acme-desk offers, is offered by other-desk too; uninstall one of them" in ended.err


def test_a_renderer_shows_the_kinds_of_its_package(site: Path) -> None:
    install_package(site)
    ordered, unknown = event("acme.ordered", body={"desk": "fx"}), event("acme.moved", body={"to": "b"})

    assert shown(ordered) == ["desk fx"]
    assert shown(unknown) == ["to b"]
    assert chain_outcome([ordered]) == "ordered"


def test_an_event_without_an_installed_renderer_is_shown_plainly(site: Path) -> None:
    site.mkdir()

    assert shown(event("acme.ordered", body={"desk": "fx"})) == ["desk fx"]
    assert chain_outcome([event("acme.ordered")]) == ""


@pytest.mark.parametrize("offers", [OFFERS, {"renderers": "acme = other_desk:nothing"}])
def test_a_renderer_that_cannot_be_used_is_named_and_its_events_are_shown_plainly(
    site: Path, capsys: pytest.CaptureFixture[str], offers: dict[str, str]
) -> None:
    install_package(site, "other-desk", offers=offers)
    if offers is OFFERS:
        install_package(site)

    assert shown(event("acme.ordered", body={"desk": "fx"})) == ["desk fx"]
    assert shown(event("acme.ordered", body={"desk": "eq"})) == ["desk eq"]
    assert capsys.readouterr().err.count("Warning: acme of agentic_trading.renderers, which ") == 1

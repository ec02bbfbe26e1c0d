"""Strategy families of installed packages: the one of docs/how-to/write-an-adapter.md, and unusable ones."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from agentic_trading import plugins
from agentic_trading.desk.planning.families import GROUP, drop_family
from agentic_trading.desk.planning.template import TEMPLATES
from tests.cli.conftest import Command
from tests.desk.planning.own_panels import write_panel
from tests.own_package import forget, install_package, loaded_modules
from tests.pages import blocks_of

PAGE: Final = Path(__file__).parents[3] / "docs" / "how-to" / "write-an-adapter.md"
NEAR_HIGH: Final = next(block.text for block in blocks_of(PAGE) if block.file == "near_high.py")
SEARCH: Final = ("strategy", "propose", "--rounds", 4, "--random", 1, "--json")
OWN: Final = (*SEARCH, "--family", "near_high")
SET: Final = {
    "strategy_type": "near_high", "high_days": 40, "trend_days": 20, "n_stocks": 10, "stop_loss": 0.08, "resample": "M",
}  # fmt: skip
BY_CATALYST: Final = NEAR_HIGH.replace(
    '    n_stocks: Literal[5',
    '    catalyst_type: OwnCatalyst = Field(description="the event that must have happened")\n    n_stocks: Literal[5',
).replace('BaseTemplate, CrossRule,', 'BaseTemplate, CrossRule, OwnCatalyst,').replace(
    '"trend_days": 20, "n_stocks"', '"trend_days": 20, "catalyst_type": "surprise", "n_stocks"'
).replace('rolling_mean(close, {{ trend_days }}))', 'rolling_mean(close, {{ trend_days }})) & happened_within(catalyst > 0, 63)')  # fmt: skip


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder of installed packages, which the process forgets at the end."""
    folder = tmp_path / "site"
    monkeypatch.syspath_prepend(folder)
    yield folder
    forget("near_high")
    drop_family("near_high")


def install(site: Path, module: str = NEAR_HIGH) -> None:
    install_package(site, "near-high", module, families="near_high = near_high:NearHigh")


def remove(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the package, as a new process without it would see it."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(site)])
    forget("near_high")
    drop_family("near_high")


def written(value: dict[str, Any]) -> str:
    Path("set.json").write_text(json.dumps(value), encoding="utf-8")
    return "set.json"


def test_shipped_families_are_entry_points() -> None:
    offered = {offer.name: offer.load() for offer in plugins.offers(GROUP)}

    assert offered == {name: type(template) for name, template in TEMPLATES.items()}


def test_own_family_is_searched_and_replayed(site: Path, command: Command) -> None:
    install(site)

    ended = command(*OWN, "--provider", "rules", "--out", "out")
    assert ended.code == 0, ended.err
    first = json.loads(ended.out)
    assert (first["family"], first["valid"], first["distinct"], first["tried"]) == ("near_high", 4, 4, 4)
    assert first["champion"]["params"]["strategy_type"] == "near_high"
    assert first["random_searches"] == 1
    forget("near_high")
    drop_family("near_high")  # as in another process

    ended = command(*OWN, "--provider", "recorded", "--from", "out", "--out", "again")
    again = json.loads(ended.out)
    for name in ("rounds", "champion", "random_median", "deflated_sharpe"):
        assert again[name] == first[name]
    table = command("strategy", "propose", "--rounds", 2, "--random", 0, "--family", "near_high").out
    assert "high_days" in table
    assert "trend_days" in table


def test_set_of_own_family_is_shown_checked_and_run(site: Path, command: Command) -> None:
    install(site)
    file, named = written(SET), ("--family", "near_high")

    shown = command("strategy", "show", file, *named)
    code = command("strategy", "code", file, *named)
    checked = command("strategy", "code", file, *named, "--check")
    result = command("strategy", "backtest", file, *named, "--json")

    assert "days of the mean that the price must be above" in shown.out
    assert "trend_days (20) must be less than high_days (40)" in shown.out
    assert "rolling_max(close, 40)" in code.out
    assert (checked.code, checked.err.count("passed")) == (0, 3)
    assert json.loads(result.out)["in_sample"]["turnover"] > 0


def test_rule_of_own_family_is_checked(site: Path, command: Command) -> None:
    install(site)

    broken = command("strategy", "show", written({**SET, "trend_days": 40}), "--family", "near_high")

    assert broken.code == 2
    assert "trend_days (40) must be less than high_days (40)" in broken.err + broken.out


def test_set_of_own_family_needs_family_named(site: Path, command: Command) -> None:
    install(site)
    file = written(SET)

    for name in ("show", "code", "backtest"):
        ended = command("strategy", name, file)
        assert ended.code == 2
        assert "no strategy family is called 'near_high'" in ended.err
    assert command("strategy", "show", file, "--family", "momentum").code == 2
    assert loaded_modules("near_high") == set()


def test_missing_package_at_replay_is_named(
    site: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site)
    assert command(*OWN, "--provider", "rules", "--out", "out").code == 0
    remove(site, monkeypatch)

    ended = command(*OWN, "--provider", "recorded", "--from", "out", "--out", "again")

    assert ended.code == 2
    assert (
        "no strategy family is called 'near_high'. Allowed: momentum, mean_reversion, volatility, or with --family "
        "the name of a family of an installed package" in " ".join(ended.err.split())
    )
    assert not Path("again").exists()


def test_only_named_family_is_imported(site: Path, command: Command) -> None:
    install(site)

    assert command(*SEARCH, "--provider", "rules", "--out", "out").code == 0
    assert command("strategy", "propose", "--family", "near_hi", "--out", "other").code == 2

    assert loaded_modules("near_high") == set()


def test_shipped_family_takes_precedence(site: Path, command: Command) -> None:
    install_package(site, "near-high", NEAR_HIGH, families="momentum = near_high:NearHigh")

    assert command(*SEARCH, "--family", "momentum", "--out", "out").code == 0
    assert loaded_modules("near_high") == set()


def test_family_in_two_packages_is_refused(site: Path, command: Command) -> None:
    install(site)
    install_package(site, "near-high-copy", NEAR_HIGH, families="near_high = near_high_copy:NearHigh")

    ended = command(*OWN, "--out", "out")

    assert ended.code == 2
    assert "is also in near-high-copy. Uninstall all but one" in ended.err


def test_own_family_uses_catalysts_of_own_panel(site: Path, command: Command, tmp_path: Path) -> None:
    install(site, BY_CATALYST)
    folder = write_panel(tmp_path / "mine")

    ended = command(*OWN, "--data", folder, "--provider", "rules", "--out", "out")

    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    chosen = {each["params"]["catalyst_type"] for each in found["rounds"]}
    assert chosen <= {"none", "surprise", "guidance"}
    params = {**SET, "n_stocks": 5, "catalyst_type": "guidance"}
    named = ("--family", "near_high", "--data", folder)
    checked = command("strategy", "code", written(params), *named, "--check")
    assert (checked.code, checked.err.count("passed")) == (0, 3), checked.err


@pytest.mark.parametrize(
    ("changed", "by", "message"),
    [
        ('family = "near_high"', 'family = "near"', "must be a subclass of BaseTemplate with family = 'near_high'"),
        ("class NearHigh(BaseTemplate)", "class Other(BaseTemplate)", "cannot be loaded (AttributeError"),
        ("PARAMS = (NearHighParams,)", "PARAMS = ()", "PARAMS must be a tuple of one subclass of FamilyParams"),
        ('default="near_high", ', 'default="near_high2", ', "strategy_type must be 'near_high'"),
        ("    n_stocks: Literal", "    stocks: Literal", "NearHighParams must have the parameters n_stocks"),
        ('Field(description="days of the high")', "40", "NearHighParams.high_days must have a description"),
        ("Literal[20, 40, 60]", "int", "each parameter of NearHighParams must list two values or more"),
        ('Literal["W", "M"]', 'Literal["W", "Q"]', "resample has W, Q. Allowed: D, W, M"),
        ("OneOf((0.08, 0.12))", "OneOf((0.08, 1.5))", "the values of stop_loss must be shares of the entry price"),
        ("n_stocks: Literal[5, 10, 20]", "n_stocks: Literal[0, 10]", "the values of n_stocks must be 1 or more"),
        ('"trend_days": 0}', '"days": 0}', "WARM_UP has days. Allowed: high_days, trend_days"),
        ('"high_days": 40, ', '"high_days": 20, ', "DEFAULTS must be a valid set"),
        ("{{ high_days }})\n", "{{ days }})\n", "template near_high cannot be rendered: 'days' is undefined"),
        ("    held = weights[0]\n", "    held = open(0)\n", "the gate refuses its code: line"),
        ("from pydantic", "1 / 0\nfrom pydantic", "cannot be loaded (ZeroDivisionError"),
    ],
)  # fmt: skip
def test_unusable_family_is_refused_with_reason(
    site: Path, command: Command, changed: str, by: str, message: str
) -> None:
    assert changed in NEAR_HIGH
    install(site, NEAR_HIGH.replace(changed, by))

    ended = command(*OWN, "--provider", "rules", "--out", "out")

    assert ended.code == 2, ended.err
    assert message in " ".join(ended.err.split())
    assert not Path("out").exists()

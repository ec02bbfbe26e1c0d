"""`prices` shows the book and recomputes recorded costs."""

import asyncio
import json
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.model_tables import price_table, select_prices
from agentic_trading.cli.options import LOG_NAME
from agentic_trading.cli.output import print_table
from agentic_trading.governance.prices import PriceBook, short_id
from agentic_trading.llm import JsonFileInteractionStore, LLMInteraction
from tests.cli.conftest import Command
from tests.operate.models.tables import price_row, prices_file
from tests.operate.prices.books import TODAY, call

BOOK = PriceBook.load()
OPUS = "claude-opus-5-5"


@pytest.fixture(autouse=True)
def _no_book_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without a price book of the user."""
    monkeypatch.delenv("AGENTIC_PRICES_FILE", raising=False)


def own_book(folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Path:
    """Use a book over the packaged one that has claude-opus-5-5 at these prices."""
    packaged = next(price for price in BOOK if price.model == OPUS)
    row = packaged.model_dump(mode="json", exclude_defaults=True) | changes
    path = prices_file(folder, row, price_row())
    monkeypatch.setenv("AGENTIC_PRICES_FILE", str(path))
    return path


def test_every_price_is_shown_with_its_tiers_and_the_book(command: Command) -> None:
    drawn = command("prices", "show").out

    assert all(f"{price.provider}/{price.model} " in drawn for price in BOOK)
    assert "over 100,000" in drawn
    assert short_id(BOOK.id) in drawn
    assert BOOK.sha256 not in drawn


def test_in_a_hundred_columns_a_price_stands_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    prices = select_prices(BOOK, at=TODAY)

    print_table(price_table(prices, BOOK, TODAY), on=Console(width=100))

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(1 + len(price.tiers) for price in prices) + 1
    assert all(len(line) <= 100 for line in lines)


def test_one_price_is_shown_with_its_multipliers_its_days_and_its_source(command: Command) -> None:
    shown = " ".join(command("prices", "show", "claude-sonnet-5-5").out.split())

    assert "all 2 10 0.1 2.5 4" in shown
    assert "since 2026-11-21; other prices since 2026-09-28" in shown
    assert "inference_geo global x1 · us x1.1" in shown
    assert "service_tier standard x1 · batch x0.5" in shown
    assert "source https://platform.claude.com" in shown


def test_the_prices_of_another_day_can_be_asked_for(command: Command) -> None:
    shown = json.loads(command("prices", "show", "claude-sonnet-5-5", "--on", "2026-11-20", "--json").out)

    [price] = shown["nusd_per_token"]
    assert (shown["on"], shown["book"]) == ("2026-11-20", BOOK.id)
    assert (price["valid_from"], price["cache_read"]) == ("2026-09-28", 200)


def test_the_prices_of_one_provider_can_be_asked_for(command: Command) -> None:
    shown = json.loads(command("prices", "show", "--provider", "rules", "--json").out)

    assert [price["model"] for price in shown["nusd_per_token"]] == ["rules-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "gpt-unheard-of"), "unknown model 'gpt-unheard-of' in the price book"),
        (("show", "--provider", "acme"), "Allowed: anthropic, local, rules, scripted"),
        (("show", "--on", "tomorrow"), "--on is 'tomorrow'. Allowed: a day such as 2026-11-22"),
        (("check", "--store", "nowhere"), "--store is nowhere, where no log is"),
    ],
)
def test_what_cannot_be_meant_is_bad_input(words: tuple[str, ...], said: str, command: Command) -> None:
    ended = command("prices", *words)

    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert said in ended.err


def test_a_book_whose_rows_are_not_those_of_its_hash_is_bad_input(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = own_book(tmp_path, monkeypatch)
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "sha256": "0" * 64}))

    ended = command("prices", "show")

    assert ended.code == ExitCode.BAD_INPUT
    assert f"{path}, sha256: is '{'0' * 64}'" in ended.err


def test_every_cost_of_a_session_is_the_recomputed_one(command: Command, session: Path) -> None:
    ended = command("prices", "check", "--store", session)
    found = json.loads(command("prices", "check", "--store", session, "--json").out)

    assert ended.code == ExitCode.DONE
    assert found["counts"]["agrees"] > 0
    assert found["records"] == []


def test_a_cost_that_differs_is_named_and_one_in_doubt_is_listed_apart(
    command: Command,
) -> None:
    doubt = {"in_doubt": True, "success": False, "cost_nusd": 5_000_000, "reserved_nusd": 5_000_000}
    asyncio.run(logged(call(), call(cost_nusd=99_999), call(**doubt)))

    ended = command("prices", "check", "--store", LOG_NAME)

    shown = " ".join(ended.out.split())
    assert ended.code == ExitCode.FOUND_WRONG
    assert "agrees 1 agrees on another day 0 differs 1 in doubt 1 no such book 0 not priced 0" in shown
    assert "anthropic/claude-sonnet-5-5 differs 99,999 100,000" in shown
    assert "anthropic/claude-sonnet-5-5 in doubt 5,000,000 -" in shown


async def logged(*calls: LLMInteraction) -> None:
    """Write a log of these calls."""
    store = JsonFileInteractionStore(Path(LOG_NAME))
    for each in calls:
        await store.store(each)
    await store.aclose()


def test_a_book_that_is_not_at_hand_is_asked_for(command: Command, golden_log: Path) -> None:
    ended = command("prices", "check", "--store", golden_log)
    found = json.loads(command("prices", "check", "--store", golden_log, "--json").out)

    assert ended.code == ExitCode.FOUND_WRONG
    assert "not at hand: 2026-01-01; name its file by --book" in ended.out
    assert {record["finding"] for record in found["records"]} == {"no such book"}


@pytest.fixture
def golden_log(tmp_path: Path) -> Path:
    """Return a copy of the golden log of calls, whose book is not shipped."""
    log = tmp_path / LOG_NAME
    log.write_bytes((Path(__file__).parents[1] / "golden" / "log" / "calls.jsonl").read_bytes())
    return log

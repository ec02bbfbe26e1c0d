"""`prices` shows the book and recomputes recorded costs."""

import asyncio
import json
from pathlib import Path

import orjson
import pytest
from rich.console import Console

from agentic_trading.cli.exits import ExitCode
from agentic_trading.cli.model_tables import price_table, select_prices
from agentic_trading.cli.output import print_table
from agentic_trading.governance.prices import PriceBook, short_id
from agentic_trading.llm import JsonFileInteractionStore, LLMInteraction
from agentic_trading.llm.store import LOG_NAME
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


def test_prices_show_lists_tiers_and_book(command: Command) -> None:
    drawn = command("prices", "show").out

    assert all(f"{price.provider}/{price.model} " in drawn for price in BOOK)
    assert "over 100,000" in drawn
    assert short_id(BOOK.id) in drawn
    assert BOOK.sha256 not in drawn


def test_price_row_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    prices = select_prices(BOOK, at=TODAY)

    print_table(price_table(prices, BOOK, TODAY), on=Console(width=100))

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + sum(1 + len(price.tiers) for price in prices) + 1
    assert all(len(line) <= 100 for line in lines)


def test_prices_show_prints_all_details(command: Command) -> None:
    shown = " ".join(command("prices", "show", "claude-sonnet-5-5").out.split())

    assert "all 2 10 0.1 2.5 4" in shown
    assert "since 2026-11-21 (other prices since 2026-09-28)" in shown
    assert "inference_geo global x1 · us x1.1" in shown
    assert "service_tier standard x1 · batch x0.5" in shown
    assert "source https://platform.claude.com" in shown


def test_prices_show_accepts_another_day(command: Command) -> None:
    shown = json.loads(command("prices", "show", "claude-sonnet-5-5", "--on", "2026-11-20", "--json").out)

    [price] = shown["nusd_per_token"]
    assert (shown["on"], shown["book"]) == ("2026-11-20", BOOK.id)
    assert (price["valid_from"], price["cache_read"]) == ("2026-09-28", 200)


def test_prices_show_filters_by_provider(command: Command) -> None:
    shown = json.loads(command("prices", "show", "--provider", "rules", "--json").out)

    assert [price["model"] for price in shown["nusd_per_token"]] == ["rules-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "gpt-unheard-of"), "unknown model 'gpt-unheard-of' in the price book"),
        (("show", "--provider", "acme"), "Allowed: anthropic, local, rules, scripted"),
        (("show", "--on", "tomorrow"), "--on is 'tomorrow'. Allowed: a day such as 2026-11-22"),
        (("check", "--store", "nowhere"), "--store is nowhere, where there is no log"),
    ],
)
def test_invalid_prices_option_is_bad_input(words: tuple[str, ...], said: str, command: Command) -> None:
    ended = command("prices", *words)

    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert said in ended.err


def test_price_book_hash_mismatch_is_bad_input(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = own_book(tmp_path, monkeypatch)
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "sha256": "0" * 64}))

    ended = command("prices", "show")

    assert ended.code == ExitCode.BAD_INPUT
    assert f"{path}, sha256: is '{'0' * 64}'" in ended.err


def test_recorded_costs_match_recomputed_costs(command: Command, session: Path) -> None:
    ended = command("prices", "check", "--store", session)
    found = json.loads(command("prices", "check", "--store", session, "--json").out)

    assert ended.code == ExitCode.DONE
    assert found["counts"]["agrees"] > 0
    assert found["records"] == []


def test_check_lists_differing_and_doubtful_costs(
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


def test_missing_price_book_is_requested(command: Command, golden_log: Path) -> None:
    ended = command("prices", "check", "--store", golden_log)
    found = json.loads(command("prices", "check", "--store", golden_log, "--json").out)

    assert ended.code == ExitCode.FOUND_WRONG
    assert "Missing price book: 2026-01-01. Pass its file with --book." in ended.out
    assert {record["finding"] for record in found["records"]} == {"no such book"}


@pytest.fixture
def golden_log(tmp_path: Path) -> Path:
    """Return a copy of the golden log of calls, whose book is not shipped."""
    log = tmp_path / LOG_NAME
    log.write_bytes((Path(__file__).parents[1] / "golden" / "log" / "calls.jsonl").read_bytes())
    return log

"""In a narrow window a table gives way in its texts: no number, date or id is broken or cut off."""

import asyncio
import re
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console, Group, RenderableType

from agentic_trading.cli import output
from agentic_trading.cli.budget_tables import controls_table, rebuild_lines
from agentic_trading.cli.model_tables import finding_table, live_check_table
from agentic_trading.cli.output import rows, table
from agentic_trading.desk.cli.summary import summary
from agentic_trading.governance.controls_document import Halt, HaltScope, TenantControls
from agentic_trading.governance.limits import Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount
from agentic_trading.governance.rebuild import KeptCharge
from agentic_trading.governance.status_feed import (
    BudgetStatus,
    CallCounts,
    CounterStatus,
    DenialStatus,
    FileStatusFeed,
    QueuedStatus,
)
from agentic_trading.ids import derived_id
from agentic_trading.llm import Event, FailureKind
from agentic_trading.operate.budget_log import LedgerRebuildReport
from agentic_trading.operate.models.catalogue import TableFinding
from agentic_trading.operate.models.live_check import LiveCheckProof, LiveCheckRow, LiveReport
from tests.build import NOW
from tests.cli.conftest import Command
from tests.desk.cli.reports import report

WIDE = 240
WIDTHS = (60, 80, 120)
NOT_COMPARED = {("trace", "list"): (60, 80), ("records",): (60, 80), ("trace", "show", "TRACE"): (60,)}
"""Where a list leaves out its figures, and where a tree has gone further to the right than an id leaves room for."""
LONGEST = 45
"""The longest word that has to stand in one piece: an id, a model, an amount; a path or a digest is longer."""

COMMANDS = [
    ("budget", "show"),
    ("budget", "history", "--all"),
    ("trace", "list"),
    ("trace", "show", "TRACE"),
    ("trace", "why", "FILL"),
    ("records",),
    ("records", "--count-by", "tenant,agent,workflow,provider,model,day"),
    ("spend",),
    ("spend", "--by", "tenant,agent,workflow,provider,model,day"),
    ("audit", "verify", "STORE"),
    ("data", "list"),
    ("data", "describe", "btcusdt-5m"),
    ("models", "list"),
    ("models", "show", "claude-opus-5-5"),
    ("prices", "show"),
    ("prices", "show", "claude-opus-5-5"),
    ("prices", "check", "--store", "STORE"),
    ("config", "show"),
]


def busy_status() -> BudgetStatus:
    """Return the report of a worker with all that it can have, in large numbers."""
    counters = tuple(
        CounterStatus(
            scope=scope, id=name, window=Window.DAY, window_id="2026-01-02",
            most=(123_456_789_012_345, 9_876_543_210, 1_000_000), spent=(98_765_432_109_876, 1_234_567_890, 999_999),
            held=(1_234_567_890, 45_678, 12), in_doubt=(987_654_321, 4_096, 3), nusd_per_hour=4_567_890_123_456,
            exhausted_at=NOW + timedelta(hours=7),
        )
        for scope, name in ((ScopeKind.TENANT, "default"), (ScopeKind.AGENT, "cmt-analyst-of-the-second-desk-7"))
    )  # fmt: skip
    queued = QueuedStatus(
        reservation_id=f"default:{derived_id('test', 1)}:1", scope=ScopeKind.AGENT, id="cmt-analyst", unit="tokens",
        asked=123_456, left=78_901, priority=1_000, since=NOW,
    )  # fmt: skip
    denied = DenialStatus(
        at=NOW, envelope_id="e", agent="cmt-analyst", workflow="analysis", kind=FailureKind.BUDGET_EXHAUSTED,
        why="tenant default has 1,234,567 tokens left, the call may need 2,345,678; raise the limit",
    )  # fmt: skip
    calls = CallCounts(admitted=1_234_567, refused=12_345, in_flight=4, reserved_nusd=3, charged_nusd=2)
    return BudgetStatus(
        worker="desk-eu-1", tenant="default", time=NOW, as_of=NOW, is_running=True, limits_version=1,
        counters=counters, parked=(queued,), refusals=(denied,), calls=calls,
    )  # fmt: skip


@pytest.fixture(scope="module")
def place(session: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of a session's folder in which a busy worker has reported."""
    folder = Path(shutil.copytree(session, tmp_path_factory.mktemp("widths") / "s"))
    asyncio.run(FileStatusFeed(folder).publish(busy_status()))
    return folder


@pytest.fixture(scope="module")
def fill(place: Path) -> Event:
    """Return the first fill on record."""
    lines = (place / "interactions.jsonl").read_bytes().splitlines()
    return next(Event.from_wire(line) for line in lines if b'"kind":"order.filled"' in line)


def numbers_in(text: str) -> set[str]:
    """Return the words with a digit, but for paths and digests."""
    return {word for word in re.findall(r"\S*\d\S*", text) if len(word) <= LONGEST and word.count("/") < 2}


def drawn(parts: Sequence[RenderableType], width: int) -> str:
    """Return what is printed of `parts` in so many columns."""
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with console.capture() as printed:
        console.print(Group(*parts), crop=False)
    return printed.get()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_output_keeps_numbers_in_narrow_windows(
    words: tuple[str, ...], command: Command, place: Path, fill: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTIC_STORE", str(place))
    names = {"STORE": str(place), "TRACE": fill.trace_id, "FILL": fill.id}
    asked = [names.get(word, word) for word in words]

    wide = command(*asked).out

    assert numbers_in(wide)
    for width in set(WIDTHS) - set(NOT_COMPARED.get(words, ())):
        monkeypatch.setattr(output, "WIDTH_OF_A_PIPE", width)
        told = command(*asked).out
        assert numbers_in(wide) - numbers_in(told) == set(), width
        assert told.count("…") == wide.count("…")


CONTROLS = TenantControls(
    version=7,
    limits=(Limit(ScopeKind.AGENT, "cmt-analyst", Window.DAY, nusd=123_456_789_012_345, tokens=9_876_543_210),),
    halts=(Halt(scope=HaltScope.AGENT, id="cmt-analyst-7", by="ops-2", why="12,345 of 12,346 wrong", at=NOW),),
)  # fmt: skip
CHARGE = Amount(123_456_789, 9_876_543, 1)
REBUILT = LedgerRebuildReport(
    "default", ("log-1",), calls=1_234_567, in_doubt=12_345, charged_nusd=987_654_321_098, in_doubt_nusd=7, knew_nusd=3,
    generation=12, kept=(KeptCharge(f"default:{derived_id('test', 2)}:1", CHARGE, CHARGE),),
)  # fmt: skip
LIVE_ROW = LiveCheckRow(
    about="context_tokens",
    told="1,000,000",
    seen="999,999 of 1,000,000 were taken",
    verdict="as told",
    cost_nusd=123_456,
)
TABLES: dict[str, Sequence[RenderableType]] = {
    "halt, resume, budget set": controls_table("redis://127.0.0.1:6379", "default", CONTROLS),
    "budget rebuild": rebuild_lines(REBUILT),
    "run": [summary(report(cost_nusd=123_456_789_012, input_tokens=1_234_567_890))],
    "models check": [finding_table([TableFinding("wrong", "anthropic/claude-opus-5-5", "retires on 2027-01-02")])],
    "models check --live": [live_check_table(LiveReport(
        version="1", checked_on=NOW.date(),
        proofs=(LiveCheckProof(model="anthropic/claude-opus-5-5", lines=(LIVE_ROW,)),),
        max_nusd=50_000_000, price_book="pb1:0123456789abcdef", address="https://api.example.com",
    ))],
    "a table of every width": [
        rows(table("id", "why", "n", right=("n",)), [(name, f"{name} waits " * 9, "1,234.56 USD")])
        for name in ("a-1", f"default:{derived_id('test', 3)}:1", "4" * LONGEST)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_table_keeps_numbers_in_narrow_windows(name: str) -> None:
    wide = drawn(TABLES[name], WIDE)

    assert numbers_in(wide)
    for width in WIDTHS:
        assert numbers_in(wide) - numbers_in(drawn(TABLES[name], width)) == set(), width


def test_table_becomes_lists_when_too_wide() -> None:
    cells = [("agent cmt-analyst", "1,234.56 USD"), ("tenant default", "")]

    def made() -> RenderableType:
        return rows(table("scope of it", "spent", right=("spent",)), cells)

    assert drawn([made()], 40).splitlines()[1] == "agent cmt-analyst  1,234.56 USD"
    assert [line.rstrip() for line in drawn([made()], 27).splitlines()] == [
        "scope of it           spent",
        "agent          1,234.56 USD",
        "cmt-analyst",
        "tenant",
        "default",
    ]
    assert drawn([made()], 24) == "agent cmt-analyst\n  spent  1,234.56 USD\ntenant default\n"

"""`trace` and `spend` with a tenant: to the byte what they say of a log that holds its records alone."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from agentic_trading.cli.exits import ExitCode
from agentic_trading.llm import Event, JsonFileInteractionStore
from agentic_trading.llm.store import Record
from tests.build import envelope, event, interaction
from tests.cli.conftest import Command, Ended
from tests.contracts.records_opening import put

MINE, THEIRS = "fund-a", "fund-b"


def call(tenant: str, asked: str, number: int = 1, cost_nusd: int = 5_000_000_000) -> Record:
    made = envelope(
        envelope_id=asked, tenant_id=tenant, trace_id="t", causation_id="bar", subject=f"{tenant}USDT"
    )
    return interaction(envelope=made, attempt_number=number, cost_nusd=cost_nusd)


def step(tenant: str, name: str, cause: str = "", trace: str = "t") -> Event:
    return event(
        "step", id=name, tenant_id=tenant, trace_id=trace, causation_id=cause, body={"text": f"of {tenant}"}
    )


LOG: list[Record] = [
    step(THEIRS, "bar"),
    call(MINE, "asked"),
    call(THEIRS, "asked", number=2),
    step(THEIRS, "listens", "asked"),
    step(MINE, "done", "asked"),
    call(THEIRS, "own"),
    step(MINE, "after", "own"),
    step(THEIRS, "elsewhere", trace="u"),
    step(MINE, "quiet", trace="v"),
    call(THEIRS, "loud"),
]

Asks = Callable[..., Ended]


@pytest.fixture
def alone_and_both(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Asks, Asks]:
    """Return what asks a log of one tenant, and one of two."""

    def asking(name: str, records: list[Record], *more: str) -> Asks:
        folder = tmp_path / name

        async def written() -> None:
            async with aclosing(JsonFileInteractionStore(folder / "session/interactions.jsonl")) as store:
                await put(store, records)

        asyncio.run(written())

        def asks(*words: str) -> Ended:
            monkeypatch.chdir(folder)
            return command(*words, *more, "--store", "session")

        return asks

    mine = [r for r in LOG if (r.tenant_id if isinstance(r, Event) else r.envelope.tenant_id) == MINE]
    tenant = ("--tenant", MINE)
    return asking("alone", mine, *tenant), asking("both", LOG, *tenant)


@pytest.mark.parametrize("as_json", [(), ("--json",)], ids=["drawn", "json"])
@pytest.mark.parametrize(
    "words",
    [
        "trace list",
        "trace list --all",
        "trace list --limit 1",
        *(f"trace show {name}" for name in ("t", "u", "v", "nobody")),
        *(f"trace why {name}" for name in ("done", "after", "asked", "bar", "own", "elsewhere", "nobody")),
        "spend",
        "spend --by tenant",
        "spend --by ,",
    ],
)
def test_tenant_output_hides_other_tenants(
    words: str, as_json: tuple[str, ...], alone_and_both: tuple[Asks, Asks]
) -> None:
    alone, both = alone_and_both

    told = both(*words.split(), *as_json)

    assert told == alone(*words.split(), *as_json)
    assert THEIRS not in told.out + told.err


@pytest.mark.parametrize("verb", ["show", "why"])
def test_id_of_other_tenant_is_unknown(verb: str, alone_and_both: tuple[Asks, Asks]) -> None:
    _, both = alone_and_both
    theirs = {"show": "u", "why": "elsewhere"}[verb]

    ended, of_nobody = both("trace", verb, theirs), both("trace", verb, "nobody")

    assert ended.code == ExitCode.FOUND_WRONG
    assert ended.err == of_nobody.err.replace("nobody", theirs)
    assert f"agentic-trading trace list --store session/interactions.jsonl --tenant {MINE}" in ended.err


def test_cause_of_other_tenant_is_missing(alone_and_both: tuple[Asks, Asks]) -> None:
    _, both = alone_and_both

    assert "step after has a cause that is not in this trace: own" in both("trace", "show", "t").out
    assert "the path is incomplete: own is not in this trace" in both("trace", "why", "after").out


@pytest.mark.usefixtures("alone_and_both")
def test_empty_tenant_matches_no_record(command: Command) -> None:
    listed = command("trace", "list", "--all", "--tenant", "", "--store", "both/session", "--json")
    shown = command("trace", "show", "t", "--tenant", "", "--store", "both/session")

    assert (listed.code, listed.out.strip()) == (ExitCode.DONE, "[]")
    assert (shown.code, shown.out) == (ExitCode.FOUND_WRONG, "")
    assert shown.err.rstrip().endswith("--tenant ''")


@pytest.mark.usefixtures("alone_and_both")
def test_output_without_tenant_names_each_tenant(command: Command) -> None:
    shown = command("trace", "show", "t", "--store", "both/session").out
    told = command("trace", "why", "done", "--store", "both/session").out

    calls = [line for line in shown.splitlines() if "call." in line and "asked" in line]
    assert [line.split()[-1] for line in calls] == [MINE, THEIRS]
    assert f"bar  tenant {THEIRS}" in told
    assert f"done  tenant {MINE}" in told


def test_single_tenant_chain_omits_tenant_names(alone_and_both: tuple[Asks, Asks]) -> None:
    _, both = alone_and_both

    assert "tenant" not in both("trace", "show", "t").out


def test_unencodable_id_is_unknown(alone_and_both: tuple[Asks, Asks]) -> None:
    alone, _ = alone_and_both

    assert alone("trace", "show", "\udcff").code == ExitCode.FOUND_WRONG
    assert alone("trace", "why", "\udcff").code == ExitCode.FOUND_WRONG

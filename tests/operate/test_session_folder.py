"""A session's folder: named by run, written whole or not at all, and clear about what cannot be used."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from agentic_trading.client.gateway import GatewayReply
from agentic_trading.desk.market.bar import Bar
from agentic_trading.desk.session.feeds import kept_bars
from agentic_trading.desk.session.kept_bars import BAR_COLUMNS, BARS_A_BATCH, BarFiles, bar_row
from agentic_trading.llm.envelope import LLMEnvelope, LLMProvider
from agentic_trading.llm.errors import StoreError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.operate.session_folder import DataSource, RunManifest, SessionFolder
from agentic_trading.platform.errors import OptionError
from tests.build import envelope, event, interaction
from tests.desk.market.bars import bar
from tests.gateway import AskedEitherWay


def manifest(run_number: int = 1, **changes: Any) -> RunManifest:
    """Return what a run over one symbol was asked to be; `changes` are fields of `RunManifest`."""
    fields = {
        "version": 2,
        "package": "0.1.0",
        "session_id": "s",
        "run_number": run_number,
        "mode": "backtest",
        "provider": LLMProvider.RULES,
        "model": "rules-1",
        "data": (DataSource(name="btcusdt-5m", symbol="BTCUSDT"),),
        "bars": 10,
        "budget_usd": Decimal("0.10"),
        "inject": "",
        "seed": "1",
        "workers": 4,
        "first_seq": 0,
        "started_at": datetime(2026, 1, 2, tzinfo=UTC),
    }
    return RunManifest(**{**fields, **changes})


def test_file_names_carry_the_run_number() -> None:
    folder = SessionFolder(Path("out"))

    names = [
        (folder.manifest(run).name, folder.decisions(run).name, folder.bars(run, "BTC").name)
        for run in (1, 2)
    ]

    assert names == [
        ("run.json", "decisions.jsonl", "bars-BTC.csv"),
        ("run-2.json", "decisions-2.jsonl", "bars-2-BTC.csv"),
    ]


def test_manifest_round_trips(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    first, second = manifest(), manifest(2, digest="ab", interrupted=True, answers="recorded")

    folder.write_manifest(first)
    folder.write_manifest(second)

    assert (folder.read_manifest(1), folder.read_manifest(2), folder.read_manifest()) == (
        first,
        second,
        second,
    )
    assert folder.last_run() == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-2.json", "run.json"]


def test_run_lines_end_at_next_run(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    folder.write_manifest(manifest())
    folder.write_manifest(manifest(2, first_seq=17))

    assert folder.last_seq(folder.read_manifest(1)) == 17
    assert folder.last_seq(folder.read_manifest(2)) is None


def test_unknown_run_error_lists_known_runs(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)

    with pytest.raises(
        OptionError, match=r"which contains no run\. Allowed: a folder created by `run --out`"
    ):
        folder.read_manifest()
    folder.write_manifest(manifest())
    with pytest.raises(OptionError, match=r"run 7\. Allowed: a run from 1 to 1"):
        folder.read_manifest(7)


@pytest.mark.parametrize(("name", "lacks"), [("none", "which is not a folder"), ("n" * 300, "name too long")])
def test_missing_folder_error_names_the_option(name: str, lacks: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"(?i)--from is .*{lacks}.*. Allowed: a folder"):
        SessionFolder(tmp_path / name).read_manifest(option="--from")


@pytest.mark.parametrize("content", [b"", b"{}", b"no json", b"[1,2]"])
def test_invalid_manifest_is_named(content: bytes, tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    folder.manifest(1).write_bytes(content)

    with pytest.raises(OptionError, match=r"run\.json is not the manifest of a run"):
        folder.read_manifest()


def test_manifest_with_unknown_provider_is_invalid(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    folder.manifest(1).write_text(
        manifest().model_dump_json().replace('"answers":"rules"', '"answers":"acme"')
    )

    with pytest.raises(OptionError, match=r"run\.json is not the manifest of a run"):
        folder.read_manifest()


def test_prepare_creates_folder_with_parents(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path / "runs" / "first")

    folder.prepare()
    folder.prepare()

    assert list(folder.path.iterdir()) == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_uncreatable_folder_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"cannot be written .*. Choose another --out") as refused:
        SessionFolder(tmp_path / place).prepare()

    assert refused.value.path == tmp_path / place


def test_unwritable_manifest_is_refused(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    folder.manifest(1).mkdir()

    with pytest.raises(StoreError, match=r"run\.json: cannot be written"):
        folder.write_manifest(manifest())


async def kept(folder: SessionFolder, *bars: Bar, fed: int = 0) -> list[Bar]:
    """Open the files of a run, add bars one by one, and return what they hold."""
    files = BarFiles(folder, manifest(), {"BTCUSDT": fed})
    await files.open()
    for each in bars:
        await files.append([each])
    await files.write()
    held = await kept_bars(folder.bars(1, "BTCUSDT"), DataSource(name="-", symbol="BTCUSDT"))
    return [item async for item in held.feed() if isinstance(item, Bar)]


async def test_bars_are_kept_in_order(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)

    assert await kept(folder) == []
    assert await kept(folder, bar(0), bar(1)) == [bar(0), bar(1)]
    assert folder.bars(1, "BTCUSDT").read_text().splitlines() == [
        ",".join(BAR_COLUMNS),
        bar_row(bar(0)),
        bar_row(bar(1)),
    ]


async def test_fed_bars_are_not_written_twice(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    fed = await kept(folder, bar(0), bar(1))
    with folder.bars(1, "BTCUSDT").open("a") as file:
        file.write(bar_row(bar(2))[:-2])

    assert await kept(folder, fed=2) == fed
    assert await kept(folder, bar(0), fed=2) == fed
    assert await kept(folder, bar(0), bar(1), bar(2), fed=2) == [*fed, bar(2)]


async def test_unwritable_bars_file_is_refused(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    files = BarFiles(folder, manifest())
    folder.bars(1, "BTCUSDT").mkdir()

    with pytest.raises(StoreError, match=r"bars-BTCUSDT\.csv: cannot be written"):
        await files.open()
    await files.append([bar(0)])
    with pytest.raises(StoreError, match=r"bars-BTCUSDT\.csv: cannot be written"):
        await files.write()


async def rows_in(folder: SessionFolder) -> int:
    text = await asyncio.to_thread(folder.bars(1, "BTCUSDT").read_text)
    return len(text.splitlines()) - 1


async def test_bars_are_batched_unless_streamed(tmp_path: Path) -> None:
    for name, streams, waiting in (("file", set[str](), 0), ("stream", {"BTCUSDT"}, 3)):
        folder = SessionFolder(tmp_path / name)
        await asyncio.to_thread(folder.prepare)
        files = BarFiles(folder, manifest(), streams=streams)
        await files.open()

        for place in range(3):
            await files.append([bar(place)])
        assert await rows_in(folder) == waiting

        for place in range(3, BARS_A_BATCH + 2):
            await files.append([bar(place)])
        assert await rows_in(folder) == (BARS_A_BATCH + 2 if streams else BARS_A_BATCH)


class RowsSeen(AskedEitherWay):
    """A gateway that counts the rows on disk at each call and event."""

    def __init__(self, folder: SessionFolder) -> None:
        self._folder = folder
        self.rows: list[int] = []

    @override
    async def ask(
        self, envelope: LLMEnvelope, *, earlier: list[LLMInteraction] | None = None
    ) -> GatewayReply:
        self.rows.append(await rows_in(self._folder))
        return interaction(envelope=envelope)

    async def record(self, _event: Event) -> None:
        self.rows.append(await rows_in(self._folder))


async def test_bars_are_written_before_calls_and_events(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path)
    files, seen = BarFiles(folder, manifest()), RowsSeen(folder)
    await files.open()
    gateway = files.around(seen)

    await files.append([bar(0), bar(1)])
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(gateway.ask(envelope()))
    await files.append([bar(2)])
    await gateway.record(event())

    assert seen.rows == [2, 2, 2, 3]

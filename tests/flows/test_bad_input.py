"""What a run refuses: clearly, before anything is written, and without harm to what is there."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from agentic_trading.desk.market.errors import BarFormatError
from agentic_trading.desk.session.run import ReplayMissError
from agentic_trading.llm.errors import StoreError, StoreLockedError
from agentic_trading.llm.models import TableError
from agentic_trading.llm.providers.fault_injection import FaultsError
from agentic_trading.llm.stores.jsonl.store import JsonFileInteractionStore
from agentic_trading.platform.errors import OptionError
from tests.flows.sessions import LOADED, contents, csv_of, decided, events_in, kept_in, ran, rows_in, write

BTC = LOADED["btcusdt-5m"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file of 360 bars, on which something is decided."""
    path = tmp_path / "btcusdt.csv"
    write(path, csv_of(BTC[:360]))
    return path


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"data": ("dogeusdt-5m",)}, OptionError, "--data is dogeusdt-5m. Allowed: one of btcusdt-5m"),
        ({"data": ("missing.csv",)}, OptionError, "--data is missing.csv"),
        ({"inject": "typos=5%"}, FaultsError, "'typos' is not a kind of fault. Allowed: malformed"),
        ({"inject": "timeout=5"}, FaultsError, "'5' is not a share like 5%"),
        ({"inject": "timeout=90%,cut=20%"}, FaultsError, "more than 100%"),
        ({"models_file": Path("missing.json")}, TableError, r"missing\.json: cannot be read"),
        (
            {"provider": "recorded", "recorded_from": Path("missing")},
            OptionError,
            "missing, .*. Allowed: a folder created by `run --out`",
        ),
        ({"resume": True}, OptionError, "out, .*. Allowed: a folder created by `run --out`"),
    ],
)
async def test_refused_run_leaves_no_output(
    changes: dict[str, Any], error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        await ran(tmp_path / "out", **changes)

    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
async def test_file_as_output_folder_is_refused(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(StoreError, match=r"cannot be written .*. Choose another --out"):
        await ran(tmp_path / place)

    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True], ids=["a second run", "resuming it"])
async def test_folder_of_running_process_is_unchanged(*, resume: bool, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    await ran(out, data=(str(file),), bars=330)
    other = JsonFileInteractionStore(out / "interactions.jsonl")
    await other.open()
    before = contents(out)

    with pytest.raises(StoreLockedError, match="another process writes to it"):
        await ran(out, data=(str(file),), bars=None, resume=resume)

    await other.aclose()
    assert contents(out) == before
    assert before["decisions.jsonl"]


@pytest.mark.parametrize("resume", [False, True], ids=["a second run", "resuming it"])
async def test_broken_log_is_named_and_not_resumed(*, resume: bool, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    await ran(out, data=(str(file),), bars=330)
    lines = (out / "interactions.jsonl").read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"warming_up", b"warming_UP")
    (out / "interactions.jsonl").write_bytes(b"\n".join(lines))
    before = contents(out)

    with pytest.raises(StoreError, match=r"interactions\.jsonl:3: ") as refused:
        await ran(out, data=(str(file),), bars=None, resume=resume)

    assert refused.value.line == 3
    assert contents(out) == before


@pytest.mark.parametrize(
    ("cell", "changed", "column"),
    [(4, "n/a", "close"), (0, "2023-03-21T05:56:00Z", "open_time"), (5, "-1", "volume")],
)
async def test_bad_row_is_named_and_decisions_kept(
    cell: int, changed: str, column: str, file: Path, tmp_path: Path
) -> None:
    rows = rows_in(file)
    cells = rows[350].split(",")
    cells[cell] = changed
    damaged = tmp_path / "btcusdt-damaged.csv"
    write(damaged, [*rows[:350], ",".join(cells), *rows[351:]])

    with pytest.raises(BarFormatError, match=f"btcusdt-damaged.csv, line 351, column '{column}'"):
        await ran(tmp_path / "damaged", data=(str(damaged),))
    await ran(tmp_path / "whole", data=(str(file),), bars=349)

    assert decided(tmp_path / "damaged") == decided(tmp_path / "whole") != b""
    broken, whole = [await kept_in(tmp_path / name / "interactions.jsonl") for name in ("damaged", "whole")]
    assert {event.id for event in events_in(broken)} == {event.id for event in events_in(whole)}
    assert len(broken) == len(whole)


async def test_run_resumes_after_bad_row_is_fixed(file: Path, tmp_path: Path) -> None:
    rows = rows_in(file)
    out = tmp_path / "out"
    write(file, [*rows[:340], "what is this", *rows[341:]])

    with pytest.raises(BarFormatError, match="line 341"):
        await ran(out, data=(str(file),))
    write(file, rows)
    resumed = await ran(out, data=(str(file),), resume=True)
    whole = await ran(tmp_path / "whole", data=(str(file),))

    assert resumed.digest == whole.digest
    assert (resumed.run_number, resumed.interrupted) == (1, False)


@pytest.mark.parametrize("rows", [[], ["", ""], ["open_time,open,high,low,close,volume"]])
async def test_source_without_bars_is_refused(rows: list[str], tmp_path: Path) -> None:
    path = tmp_path / "btc.csv"
    write(path, rows)

    with pytest.raises(OptionError, match=r"btc\.csv, which holds no bar"):
        await ran(tmp_path / "out", data=(str(path),))

    assert not (tmp_path / "out").exists()


async def test_missing_recorded_answer_is_named(tmp_path: Path) -> None:
    await ran(tmp_path / "few", data=("btcusdt-5m",), bars=5)

    with pytest.raises(
        ReplayMissError,
        match=r"^1 answer .* after 3\d\d bars, the first is rk1:\w{64} \(tenant 'default', agent 'cmt-analyst', step 'cmt', occurrence 0, attempt 1\)",
    ) as e:
        await ran(
            tmp_path / "more",
            data=("btcusdt-5m",),
            bars=330,
            provider="recorded",
            recorded_from=tmp_path / "few",
        )

    assert len(e.value.misses) == 1
    kinds = [event.kind for event in events_in(await kept_in(tmp_path / "more" / "interactions.jsonl"))]
    assert kinds.count("analysis.undecided") == 1
    assert "analysis.assessed" not in kinds


async def test_recorded_answers_for_other_symbol_are_refused(
    tmp_path: Path,
) -> None:
    await ran(tmp_path / "bitcoin", data=("btcusdt-5m",), bars=5)

    with pytest.raises(
        OptionError, match=r"^--data is bars of ETHUSDT. Allowed: bars of BTCUSDT, the symbols"
    ):
        await ran(
            tmp_path / "ether",
            data=("ethusdt-5m",),
            provider="recorded",
            recorded_from=tmp_path / "bitcoin",
        )

    assert not (tmp_path / "ether").exists()


async def test_recording_without_log_is_refused(tmp_path: Path) -> None:
    await ran(tmp_path / "first", data=("btcusdt-5m",), bars=5)
    (tmp_path / "first" / "interactions.jsonl").unlink()

    with pytest.raises(StoreError, match="there is no log here"):
        await ran(tmp_path / "second", provider="recorded", recorded_from=tmp_path / "first")

    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize("name", ["decisions.jsonl", "bars-BTCUSDT.csv"])
async def test_unwritable_output_file_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()

    with pytest.raises(StoreError, match=f"{name}: cannot be written"):
        await ran(tmp_path, data=("btcusdt-5m",), bars=5)


async def test_log_without_manifest_continues_as_first_run(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    await ran(out, data=(str(file),), bars=330)
    lines = len(await kept_in(out / "interactions.jsonl"))
    (out / "run.json").unlink()

    await ran(out, data=(str(file),), bars=330, seed="other")

    assert orjson.loads((out / "run.json").read_bytes())["first_seq"] == lines

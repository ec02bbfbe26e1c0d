"""A shipped recording is found by its name, and unpacked only for as long as it is read."""

from pathlib import Path

import pytest

from agentic_trading.desk.session.run_setup import pack, session_folder, shipped_names
from agentic_trading.platform.errors import OptionError

FILES = {"run.json": b"{}", "interactions.jsonl": b"one\ntwo\n", "bars-BTCUSDT.csv": b"open_time\n"}


def session(folder: Path) -> Path:
    """Write the files of a session, and an index that need not be shipped."""
    folder.mkdir()
    for name, content in {**FILES, "interactions.index.sqlite": b"index"}.items():
        (folder / name).write_bytes(content)
    return folder


def test_packed_session_is_unpacked_temporarily(tmp_path: Path) -> None:
    pack(session(tmp_path / "session"), tmp_path / "small.zip")

    with session_folder(Path("small"), shipped=tmp_path) as folder:
        unpacked = {path.name: path.read_bytes() for path in folder.iterdir()}

    assert unpacked == FILES
    assert not folder.exists()
    assert shipped_names(tmp_path) == ["small"]


def test_equal_sessions_pack_to_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        pack(session(tmp_path / name), tmp_path / f"{name}.zip")

    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()


def test_folder_precedes_shipped_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(session(tmp_path / "small"), tmp_path / "small.zip")
    monkeypatch.chdir(tmp_path)

    with session_folder(Path("small"), shipped=tmp_path) as folder:
        assert folder == Path("small")


@pytest.mark.parametrize("name", ["none", "n" * 300])
def test_unknown_recording_lists_names(name: str, tmp_path: Path) -> None:
    pack(session(tmp_path / "session"), tmp_path / "small.zip")

    with (
        pytest.raises(OptionError, match=r"^--from is n.*, or a shipped recording: small$"),
        session_folder(Path(name), shipped=tmp_path),
    ):
        pass


def test_missing_folder_passes_without_recordings(tmp_path: Path) -> None:
    with session_folder(tmp_path / "none", shipped=tmp_path) as folder:
        assert folder == tmp_path / "none"

"""`tools.schemas` writes the published files and compares them with the models."""

import sys
from pathlib import Path

import pytest

from tools import schemas


@pytest.fixture(autouse=True)
def _empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start in an empty folder."""
    monkeypatch.chdir(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run the tool with these words."""
    monkeypatch.setattr(sys, "argv", ["schemas", *words])
    schemas.main()


def test_written_files_pass_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "write")
    written = {Path(line).name for line in capsys.readouterr().out.splitlines()}
    run(monkeypatch, "check")

    assert written == set(schemas.published_files())
    assert capsys.readouterr().out == f"{len(written)} files in schemas are up to date\n"


def test_missing_file_fails_the_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "write", "--dir", "api")
    Path("api/event.v1.json").unlink()

    with pytest.raises(SystemExit, match=r"api differs from the models\. Run: .* write --dir api"):
        run(monkeypatch, "check", "--dir", "api")

    assert "api/event.v1.json is missing" in capsys.readouterr().err

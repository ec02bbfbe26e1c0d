"""The metadata of the wheel: its description, and the files that a build reads."""

import tomllib
from typing import Any

from benchmarks.house import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_description_is_the_readme() -> None:
    assert PROJECT["readme"] == "README.md"


def test_image_copies_every_metadata_file() -> None:
    licences = [path.name for pattern in PROJECT["license-files"] for path in ROOT.glob(pattern)]
    needed = {"pyproject.toml", PROJECT["readme"], *licences}

    copied = (ROOT / "infra" / "Dockerfile").read_text(encoding="utf-8").split()
    sent = (ROOT / "infra" / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()

    assert needed - set(copied) == set()
    assert {f"!{name}" for name in needed} - set(sent) == set()

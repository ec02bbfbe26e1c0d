"""The sources of a dashboard: the names of logs, and texts about them without paths."""

import os
import re
from pathlib import Path

import pytest

from agentic_trading.llm.errors import StoreError
from agentic_trading.monitor.sources import SourceOptions, open_sources
from agentic_trading.platform.errors import OptionError
from tests.audit.reading import desk
from tests.monitor.conftest import StartDashboard
from tests.monitor.record_pages import add, in_thread


@pytest.mark.parametrize("given", [".", "..", "../session", "sub/..", "sub/../../session"])
async def test_folder_without_a_name_of_its_own_has_that_of_its_path(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(tmp_path / "session" / "interactions.jsonl", *desk("fund"))
    (tmp_path / "session" / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "session" / ("sub" if given == ".." else ""))

    async with open_sources(SourceOptions((Path(given),))) as sources:
        [log] = await sources.logs()
        text = sources.without_paths(str(StoreError(log.path, "is broken. Mend it", line=3)))
        place = sources.place

    assert (log.name, place) == ("session", "session")
    assert text == "session/interactions.jsonl:3: is broken. Mend it"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("none", "which does not exist"),
        ("log.jsonl/sub", "which does not exist"),
        ("a" * 300, "which cannot be read (File name too long)"),
        ("loop", "which cannot be read (Too many levels of symbolic links)"),
    ],
)
async def test_folder_that_cannot_be_read_is_refused(name: str, found: str, tmp_path: Path) -> None:
    await add(tmp_path / "log.jsonl", *desk("fund"))
    (tmp_path / "loop").symlink_to("loop")

    for options in (SourceOptions((tmp_path / name,)), SourceOptions(archive=tmp_path / name)):
        with pytest.raises(OptionError, match=re.escape(f"{tmp_path / name}, {found}")):
            async with open_sources(options):
                pass


async def test_linked_folder_keeps_its_name(tmp_path: Path) -> None:
    await add(tmp_path / "session" / "interactions.jsonl", *desk("fund"))
    (tmp_path / "newest").symlink_to("session")

    async with open_sources(SourceOptions((tmp_path / "newest",))) as sources:
        assert [log.name for log in await sources.logs()] == ["newest"]


async def test_folder_whose_name_is_no_text_is_shown(dashboard: StartDashboard, tmp_path: Path) -> None:
    await add(tmp_path / "session" / "interactions.jsonl", *desk("fund"))
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/odd-\xff")
    await in_thread(os.rename, tmp_path / "session", odd)

    shown = dashboard(SourceOptions((Path(odd),)))

    for path in ("/", "/calls", "/trace", "/fleet"):
        found = await in_thread(shown.get, path)
        assert (found.status, "odd-\\udcff" in found.text) == (200, True)

"""Code blocks of README and docs, with the directives that say how a test runs them.

A directive is an HTML comment on the line above a block, so that readers do not see it:

- `<!-- file: order.json -->`: the block is this file, in the folder where the page's blocks run
- `<!-- needs: redis -->` or `kafka`: the block runs with a server, at the address that the page writes
- `<!-- not run: it asks a paid model -->`: the block is parsed only, for this reason
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
REDIS: Final = "redis://127.0.0.1:6379"
KAFKA: Final = "kafka://127.0.0.1:9092"
"""The addresses that pages write. A test puts those of its own servers in their place."""

_FENCE: Final = re.compile(
    r"(?:^<!-- (?P<directive>file|needs|not run): (?P<value>[^\n]+?) -->\n+)?"
    r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str
    file: str = ""
    needs: str = ""
    not_run: str = ""

    def __str__(self) -> str:
        """Return the place of the block."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        values = {"file": "", "needs": "", "not run": ""}
        if found["directive"]:
            values[found["directive"]] = found["value"]
        yield Block(
            str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page.name),
            text.count("\n", 0, found.start("text")),
            found["language"],
            found["text"],
            file=values["file"],
            needs=values["needs"],
            not_run=values["not run"],
        )


BLOCKS: Final[Sequence[Block]] = [block for page in PAGES for block in blocks_of(page)]


def write_files(page: str, folder: Path) -> None:
    """Write the blocks of a page that are files into `folder`, which is made if it does not exist."""
    folder.mkdir(exist_ok=True)
    for block in BLOCKS:
        if block.page == page and block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")

"""The pages keep up with the repository: links lead somewhere, commands exist, indexes are whole."""

import re
from itertools import count
from pathlib import Path

import pytest

from benchmarks.call_path import PEERS
from tests.pages import blocks_of
from tests.server.libraries import EXPECTED

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "infra").rglob("*.md")]
    if ".venv" not in page.parts
)
LINK = re.compile(r"\[[^\]]+\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
SECTION_LINK = re.compile(r"\[[^\]]+\]\((?!https?://|mailto:)([^)#\s]*)#([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+?)\s*$", re.MULTILINE)
MAKE = re.compile(r"(?:^|[`\s])make ([a-z]+)(?=[\s`,;.)]|$)", re.MULTILINE)
SPAN = re.compile(r"`[^`\n]+`")
MODULE = re.compile(r"[\w/]+\.py\b")
MODULES = [
    f"/{path.relative_to(ROOT).as_posix()}"
    for place in (
        "agentic_trading/**",
        "tests/**",
        "benchmarks",
        "benchmarks/peers",
        "benchmarks/peers/*",
        "examples",
        "examples/*",
        "tools",
    )
    for path in ROOT.glob(f"{place}/*.py")
]
CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def make_targets() -> set[str]:
    """Return the targets that the Makefile offers to people."""
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z]+):.*##", rules, re.MULTILINE))


@every_page
def test_link_targets_exist(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))

    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in HEADING.findall(text))
    anchors: set[str] = set()
    for anchor in (re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles):
        anchors.add(next(name for n in count() if (name := f"{anchor}-{n}" if n else anchor) not in anchors))
    return anchors


@every_page
def test_sections_that_links_name_exist(page: Path) -> None:
    links = SECTION_LINK.findall(page.read_text(encoding="utf-8"))
    targets = [((page.parent / file).resolve() if file else page, anchor) for file, anchor in links]

    assert [
        f"{target.name}#{anchor}"
        for target, anchor in targets
        if target.suffix == ".md" and anchor not in anchors_of(target)
    ] == []


@every_page
def test_modules_named_in_code_exist(page: Path) -> None:
    named = {name for span in SPAN.findall(page.read_text(encoding="utf-8")) for name in MODULE.findall(span)}
    named -= {block.file for block in blocks_of(page)}

    assert [name for name in named if not any(module.endswith(f"/{name}") for module in MODULES)] == []


@every_page
def test_tests_named_on_pages_exist(page: Path) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))

    assert [
        name for file, name in named if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ] == []


@every_page
def test_make_commands_in_code_are_targets(page: Path) -> None:
    code = "\n".join(CODE.findall(page.read_text(encoding="utf-8")))

    assert set(MAKE.findall(code)) - make_targets() == set()


def test_makefile_targets_are_few_and_explained() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", rules, re.MULTILINE)

    assert phony
    assert set(phony[1].split()) - {"always"} == make_targets()
    assert len(make_targets()) <= 12


def test_decision_index_names_every_decision() -> None:
    folder = ROOT / "docs" / "explanation" / "decisions"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))

    assert {page.name for page in folder.glob("[0-9]*.md")} <= listed


@pytest.mark.parametrize(
    "file", ["constraints.txt", *(f"benchmarks/peers/{peer}/constraints.txt" for peer in (*PEERS, *EXPECTED))]
)
def test_pinned_versions_name_no_host(file: str) -> None:
    pins = (ROOT / file).read_text(encoding="utf-8").splitlines()

    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9.-]+==[\w.]+( ; [\w .<>=!'\"()]+)?", pin)] == []

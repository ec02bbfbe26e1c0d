"""Count the patterns of hard prose: `python -m tools.prose` prints a table by folder, and exits 1 if a limit is passed.

Four kinds are counted: pages, docstrings, messages with the help of options, and test names. Code in Markdown is left out.
Figures are per 1,000 words. Comments with a reason are counted per 1,000 lines of code. Limits may only fall.
"""

import ast
import gc
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.house import ROOT, Module, package, read

PATTERNS: Final = {
    "what": re.compile(r"\bwhat\b(?![^.!?]*\?)", re.IGNORECASE),
    "clauses": re.compile(
        r"\b(?:what|who|which)\s+(?:is|are|was|were|has|have|had|may|might|can|could|must|shall|should|will|would|does|do|did)\b(?![^.!?]*\?)",
        re.IGNORECASE,
    ),
    "semicolons": re.compile(r";"),
    "negated nouns": re.compile(r"\b(?:nothing|(?-i:none)|nobody|no one|no (?:error|call))\b", re.IGNORECASE),
    "people's verbs": re.compile(
        r"\b(?:says?|said|tells?|told|knows?|is judged|are judged|looks again|is handed|are handed)\b",
        re.IGNORECASE,
    ),
    "stands": re.compile(r"\b(?:stands?(?!-in)|lies|goes on|go on)\b", re.IGNORECASE),
}
"""The measures of the style guide: free relatives, relative clauses, chains, negation, and verbs that only people have."""

REASON: Final = re.compile(
    r"\b(?:because|so that|otherwise|unless|since|until|RFC|gh-\d+|would)\b|https?://", re.IGNORECASE
)
"""A comment with one of these gives a reason."""

LIMITS: Final[dict[str, dict[str, float]]] = {
    "pages": {
        "what": 0.2,
        "clauses": 0.5,
        "semicolons": 0.2,
        "negated nouns": 1.0,
        "people's verbs": 0.1,
        "stands": 0.0,
    },
    "docstrings": {
        "what": 0.1,
        "clauses": 0.5,
        "semicolons": 0.1,
        "negated nouns": 0.9,
        "people's verbs": 0.1,
        "stands": 0.1,
    },
    "messages": {
        "what": 0.0,
        "clauses": 1.5,
        "semicolons": 1.8,
        "negated nouns": 1.5,
        "people's verbs": 0.2,
        "stands": 0.3,
    },
    "test names": {
        "what": 0.0,
        "clauses": 0.0,
        "semicolons": 0.0,
        "negated nouns": 0.2,
        "people's verbs": 0.0,
        "stands": 0.0,
    },
}
"""The highest allowed figures. They may only fall."""

LEAST_REASONS: Final = 11.0
"""The least number of comments with a reason, for each 1,000 lines of code. It may only rise."""

_MARKDOWN_CODE: Final = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|^\|[-| :]+\|$", re.DOTALL | re.MULTILINE)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CALLS: Final = frozenset({"say", "stop", "OptionError", "BadParameter"})
"""Functions and exceptions of the command line whose texts a user reads."""


@dataclass(frozen=True, slots=True)
class Prose:
    """Texts of one kind and place."""

    place: str
    kind: str
    text: str

    @property
    def words(self) -> int:
        """The number of words."""
        return len(_WORD.findall(self.text))


@dataclass(frozen=True, slots=True)
class Figures:
    """The number of words, and each pattern per 1,000 of them."""

    words: int
    per_1000: dict[str, float]


def page_text(markdown: str) -> str:
    """Return a page without code, links' targets and rules of tables."""
    return _MARKDOWN_CODE.sub(" ", markdown)


def docstrings(module: Module) -> Iterator[str]:
    """Yield docstrings, of constants too, without names in backticks."""
    for node in module.nodes(ast.Expr):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield re.sub(r"`[^`\n]*`", " ", value.value)


def _texts(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def messages(module: Module) -> Iterator[str]:
    """Yield help texts of options, texts that a command prints, and texts of errors that are raised."""
    raised = {inner for node in module.nodes(ast.Raise) for inner in ast.walk(node)}
    for node in module.nodes(ast.Raise):
        yield from _texts(node)
    for node in module.nodes(ast.Call):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _CALLS and node not in raised:
            yield from (text for argument in node.args for text in _texts(argument))
        yield from (text for word in node.keywords if word.arg == "help" for text in _texts(word.value))


def names_of_tests(module: Module) -> Iterator[str]:
    """Yield the names of tests as words."""
    for node in module.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name.removeprefix("test_").replace("_", " ") + "."


def reasons(module: Module) -> int:
    """Return the number of comments that give a reason."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return sum(token.type == tokenize.COMMENT and bool(REASON.search(token.string)) for token in tokens)


def _folder(name: str) -> str:
    return "/".join(Path(name).parts[:2]) if len(Path(name).parts) > 2 else Path(name).parts[0]


def collect() -> list[Prose]:
    """Return all prose of the repository, by place and kind."""
    found = []
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        text = page_text(page.read_text(encoding="utf-8"))
        found.append(Prose(_folder(str(page.relative_to(ROOT))), "pages", text))
    for module in package():
        place = _folder(module.name)
        found += [
            Prose(place, "docstrings", " ".join(docstrings(module))),
            Prose(place, "messages", ". ".join(messages(module))),
        ]
    found += [
        Prose("tests", "test names", " ".join(names_of_tests(module))) for module in read(ROOT / "tests")
    ]
    return found


def figures(prose: list[Prose]) -> Figures:
    """Count the patterns over texts."""
    words = sum(one.words for one in prose)
    counts = {
        name: sum(len(pattern.findall(one.text)) for one in prose) for name, pattern in PATTERNS.items()
    }
    return Figures(words, {name: round(1000 * count / max(words, 1), 1) for name, count in counts.items()})


def reasons_per_1000_lines() -> float:
    """Return how many comments of the package give a reason, for each 1,000 lines of code."""
    ours = package()
    return round(1000 * sum(map(reasons, ours)) / sum(module.code_lines for module in ours), 1)


def by_kind(prose: list[Prose]) -> dict[str, Figures]:
    """Return the figures of each kind of prose."""
    kinds = dict.fromkeys(one.kind for one in prose)
    return {kind: figures([one for one in prose if one.kind == kind]) for kind in kinds}


def breaches(found: dict[str, Figures], limits: dict[str, dict[str, float]]) -> list[str]:
    """Return the figures that are above their limit."""
    return [
        f"{kind}: {name} is {value}, at most {limits[kind][name]}"
        for kind, one in found.items()
        for name, value in one.per_1000.items()
        if value > limits[kind][name]
    ]


def main() -> None:
    """Print the figures by folder and by kind."""
    prose = collect()
    rows = defaultdict[str, list[Prose]](list)
    for one in prose:
        rows[f"{one.kind}, {one.place}"].append(one)
    print(f"{'for 1,000 words':<44}{'words':>8}" + "".join(f"{name:>16}" for name in PATTERNS))
    total = by_kind(prose)
    for title, found in [*((title, figures(texts)) for title, texts in sorted(rows.items())), *total.items()]:
        print(f"{title:<44}{found.words:>8,}" + "".join(f"{value:>16}" for value in found.per_1000.values()))
    why = reasons_per_1000_lines()
    print(f"comments with a reason, for 1,000 lines of code: {why}, at least {LEAST_REASONS}")
    over = breaches(total, LIMITS)
    print(*over, sep="\n")
    sys.exit(1 if over or why < LEAST_REASONS else 0)


if __name__ == "__main__":
    gc.disable()  # a third of the time would be collections, which free no tree
    main()

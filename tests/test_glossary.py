"""One word, one thing: the glossary's terms exist, and modules are named from it."""

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from benchmarks.house import Module, names_twice, package, words

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
TERMS, _, PLAIN = PAGE.partition("## Plain nouns in names of modules")
ROWS = [line.split("|")[1] for line in TERMS.splitlines() if line.startswith("| ")]
NAMES = sorted({name for cell in ROWS for name in re.findall(r"`([A-Z][\w.]+)`", cell)})
PLAIN_NOUNS = set(re.findall(r"[a-z]+", PLAIN))
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module(source: str, name: str = "agentic_trading/planted.py") -> Module:
    return Module(name, source, ast.parse(source))


@pytest.fixture(scope="module", autouse=True)
def _trees_are_freed() -> Iterator[None]:
    """Free the trees of the package, which slow every later garbage collection."""
    yield
    package.cache_clear()


@cache
def homes() -> Mapping[str, str]:
    """Return where each public class or alias of the package is defined."""
    found = {}
    for each in package():
        for node in each.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = each.dotted
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = each.dotted
    return found


def known_words() -> set[str]:
    """Return every word of the glossary's terms, in the singular, and the plain nouns."""
    bold = [word for cell in ROWS for text in re.findall(r"\*\*([^*]+)\*\*", cell) for word in text.split()]
    terms = {word for name in [*NAMES, *bold] for word in words(name)}
    return {word.removesuffix("s") for word in terms} | PLAIN_NOUNS


def unknown(modules: Iterable[Module], known: set[str]) -> list[str]:
    """Return the modules that have a word in their name which is neither a term nor a plain noun."""
    return [
        each.name
        for each in modules
        if not each.is_door
        and not all(word in known or word.removesuffix("s") in known for word in words(Path(each.name).stem))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_glossary_term_exists(name: str) -> None:
    thing, *members = name.split(".")
    found = getattr(importlib.import_module(homes()[thing]), thing)

    for member in members:
        found = getattr(found, member)
    assert found is not None


def test_unknown_glossary_term_is_not_found() -> None:
    assert "TradeWhisperer" not in homes()


def test_modules_are_named_from_the_glossary() -> None:
    assert unknown(package(), known_words()) == []
    assert unknown([module("", "agentic_trading/worker/whirl.py")], known_words()) != []


def test_plain_nouns_are_all_used() -> None:
    used = {word for each in package() for word in words(Path(each.name).stem)}

    assert sorted(PLAIN_NOUNS - used) == []


def test_public_names_are_defined_once() -> None:
    line = module("class Line:\n    pass\n")

    assert names_twice(package(), *DEFINITIONS) == {}
    assert names_twice((line, line), *DEFINITIONS) == {"Line": [line.place(line.tree.body[0])] * 2}


def test_aliases_do_not_reuse_class_names() -> None:
    def shared(modules: Iterable[Module]) -> set[str]:
        bodies = [node for each in modules for node in each.tree.body]
        targets = [node.targets[0] for node in bodies if isinstance(node, ast.Assign)]
        aliases = {target.id for target in targets if isinstance(target, ast.Name) and target.id[0] != "_"}
        return aliases & {node.name for node in bodies if isinstance(node, ast.ClassDef)}

    assert shared(package()) == set()
    assert shared([module("class Limit:\n    pass\n"), module("Limit = int\n")]) == {"Limit"}

"""The page of the public API, `docs/reference/api.md`; `python -m benchmarks.api_page` writes it, and a test compares it."""

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reference" / "api.md"

PUBLIC: Final = (
    "agentic_trading",
    "agentic_trading.llm",
    "agentic_trading.structured",
    "agentic_trading.client",
    "agentic_trading.recursion",
    "agentic_trading.providers",
    "agentic_trading.brokers",
    "agentic_trading.operate",
    "agentic_trading.audit",
    "agentic_trading.replay",
    "agentic_trading.testing",
    "agentic_trading.desk",
    "agentic_trading.desk.planning",
)
"""The modules that applications import from. Everything else may change any day."""

HEAD: Final = """# Public API

Import the first module as `at`: `import agentic_trading as at`. Its names are loaded when they are first used. All other modules on this page are public too.
A module that is not on this page may change without notice. This page is generated: `python -m benchmarks.api_page`.
"""


def api_page(modules: Sequence[str] = PUBLIC) -> str:
    """Return the page: every public name of every module, with its first line of documentation."""
    return HEAD + "".join(_section(importlib.import_module(name)) for name in modules)


def entries(module: ModuleType) -> Iterator[tuple[str, str]]:
    """Yield each public name of a module as it is used, and its first line of documentation (empty if it has none)."""
    notes = _notes(module)
    for name in module.__all__:
        if name == "__version__":
            yield name, "The version of the package."
            continue
        thing = getattr(module, name)
        is_made = inspect.isclass(thing) or inspect.isroutine(thing)
        written = (inspect.getdoc(thing) if is_made else notes.get(name)) or ""
        yield _use(name, thing), " ".join(written.partition("\n\n")[0].split())


def _section(module: ModuleType) -> str:
    summary = (inspect.getdoc(module) or "").partition("\n")[0]
    rows = "".join(f"- `{use}`: {text}\n" for use, text in entries(module))
    return f"\n## {module.__name__}\n\n{summary}\n\n{rows}"


def _use(name: str, thing: object) -> str:
    """Return a function with the names of its parameters; of anything else the name."""
    if not inspect.isroutine(thing):
        return name
    shown: list[str] = []
    for one in inspect.signature(thing).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in "".join(shown):
            shown.append("*")
        shown.append(f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name)
    return f"{name}({', '.join(shown)})"


def _notes(module: ModuleType) -> dict[str, str]:
    """Return the texts below constants and aliases, by the names under which a module imports them."""
    path = Path(module.__file__ or "")
    stub = path.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else path).read_text(encoding="utf-8"))
    homes = {
        alias.name: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    found: dict[str, str] = {}
    for name, home in homes.items():
        if (
            home.startswith("agentic_trading")
            and name in module.__all__
            and name in (texts := _texts_in(home))
        ):
            found[name] = texts[name]
    return found


@cache
def _texts_in(home: str) -> Mapping[str, str]:
    """Return the texts below constants and aliases of a module, by name. Cached, because doors share modules."""
    found: dict[str, str] = {}
    for before, after in pairwise(ast.parse(inspect.getsource(importlib.import_module(home))).body):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found.update(dict.fromkeys(_targets(before), str(after.value.value)))
    return found


def _targets(node: ast.stmt) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(api_page(), encoding="utf-8")

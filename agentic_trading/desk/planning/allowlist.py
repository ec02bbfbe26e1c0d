"""The gate for generated code: code may run only if all its constructs are listed."""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from agentic_trading.desk.planning.template import ARGUMENTS, ENTRY

NUMPY: Final = frozenset({
    "abs", "argsort", "count_nonzero", "cumsum", "full", "inf", "isfinite", "isnan", "max", "maximum", "mean", "min",
    "minimum", "nan", "ones", "sqrt", "std", "sum", "where", "zeros",
})  # fmt: skip
BUILTINS: Final = frozenset({"range", "len", "max", "min"})
KEYWORDS: Final = frozenset({"axis", "kind"})
ATTRIBUTES: Final = frozenset({"shape"})
"""The allowed attributes of any value. Those of `np` are in `NUMPY`."""

MAX_BYTES: Final = 20_000
MAX_NODES: Final = 3_000
MAX_INTEGER: Final = 10_000_000

# Powers and shifts are left out because their results may be huge, and products of matrices because they differ
# between machines.
_NODES: Final = frozenset({
    ast.Module, ast.Import, ast.alias, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign,
    ast.Expr, ast.For, ast.If, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Call, ast.keyword, ast.Attribute,
    ast.Subscript, ast.Slice, ast.Name, ast.Constant, ast.Tuple, ast.Load, ast.Store,
    ast.And, ast.Or, ast.Not, ast.Invert, ast.UAdd, ast.USub, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr, ast.BitXor,
})  # fmt: skip
"""The allowed nodes of the syntax tree."""

# A comment ends at a lone \r, because Python ends the line there. Other line ends of `str.splitlines` do not end
# a line in Python.
_HEADER: Final = re.compile(r"(?:#[^\r\n\f]*\n|\n)*")
_ENCODING: Final = re.compile(r"coding[:=]")


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A construct that the gate refuses, and the allowed alternatives.

    Attributes:
        line: The line number, from 1.
        message: The refused construct and the alternatives.

    """

    line: int
    message: str

    @property
    def text(self) -> str:
        """The problem with its line number, on one line."""
        return f"line {self.line}: {self.message}"


def code_problems(code: str) -> tuple[CodeProblem, ...]:
    """Return all problems of generated code, in order of line.

    The code must be a module of functions over numpy arrays, with one `target_weights(close, volume,
    catalyst, rebalance)`. Endless loops and memory use are not checked here: the limits of the sandbox end
    them.

    Returns:
        The problems. An empty tuple means that the code may run.

    """
    if len(code.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return (CodeProblem(1, f"the code has more than {MAX_BYTES} bytes"),)
    if _ENCODING.search(code):
        return (CodeProblem(1, "the code declares an encoding; allowed: none"),)
    header, body = split_header(code)
    above = header.count("\n")
    return tuple(CodeProblem(each.line + above, each.message) for each in _problems_of(body))


def split_header(code: str) -> tuple[str, str]:
    """Return the leading comments of code, and the rest, which is parsed and run."""
    match = _HEADER.match(code)
    end = match.end() if match else 0
    return code[:end], code[end:]


@lru_cache(maxsize=1024)  # so that each body is checked once: the sets of a family have a few hundred bodies
def _problems_of(body: str) -> tuple[CodeProblem, ...]:
    try:
        tree = ast.parse(body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as e:
        line = getattr(e, "lineno", None) or 1
        return (CodeProblem(line, f"the code is no Python: {getattr(e, 'msg', None) or e}"),)
    nodes = list(ast.walk(tree))
    if len(nodes) > MAX_NODES:
        return (CodeProblem(1, f"the code has more than {MAX_NODES} nodes"),)
    problems = [*_module_problems(tree), *_Walk(tree, nodes).problems()]
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: problem.line))


def _module_problems(tree: ast.Module) -> Iterator[CodeProblem]:
    """Yield problems of the top level: it has an import of numpy, and functions."""
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.FunctionDef) and not _is_text(node):
            yield CodeProblem(node.lineno, "at the top are allowed: import numpy as np, and functions")
    if names.count(ENTRY) != 1:
        yield CodeProblem(1, f"there must be exactly one function {ENTRY}({', '.join(ARGUMENTS)})")
    if repeated := sorted({name for name in names if names.count(name) > 1 and name != ENTRY}):
        yield CodeProblem(1, f"functions are defined twice: {', '.join(repeated)}; allowed: once")


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


class _Walk:
    """A check of all nodes of a module, with a rule for each kind of node."""

    def __init__(self, tree: ast.Module, nodes: Sequence[ast.AST]) -> None:
        self._tree = tree
        self._nodes = nodes
        self._functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._callable = self._functions | BUILTINS
        self._reserved = self._callable | {"np"}
        self._bound = self._reserved | _stored_names(nodes)
        self._called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
        self._based = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        self._checks: dict[type[ast.AST], Callable[[Any], Iterator[str]]] = {
            ast.Import: self._import_messages,
            ast.FunctionDef: self._function_messages,
            ast.Name: self._name_messages,
            ast.Call: self._call_messages,
            ast.Attribute: _attribute_messages,
            ast.Constant: _constant_messages,
            ast.Assign: _assign_messages,
            ast.For: _for_messages,
        }

    def problems(self) -> Iterator[CodeProblem]:
        line = 1
        for node in self._nodes:
            line = getattr(node, "lineno", line)
            for message in self._messages(node):
                yield CodeProblem(line, message)

    def _messages(self, node: ast.AST) -> Iterator[str]:
        if type(node) not in _NODES:
            yield f"{type(node).__name__} is not allowed; allowed: {_CONSTRUCTS}"
        elif check := self._checks.get(type(node)):
            yield from check(node)

    def _import_messages(self, node: ast.Import) -> Iterator[str]:
        names = [(each.name, each.asname) for each in node.names]
        if node not in self._tree.body or names != [("numpy", "np")]:
            yield "this import is not allowed; allowed: import numpy as np, at the top"

    def _function_messages(self, node: ast.FunctionDef) -> Iterator[str]:
        given = node.args
        names = tuple(arg.arg for arg in given.args)
        if node not in self._tree.body:
            yield f"function {node.name} stands within another; allowed: at the top"
        plain = not (given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults)
        annotated = node.returns or any(arg.annotation for arg in given.args)
        if not plain or annotated or node.decorator_list or getattr(node, "type_params", None):
            yield f"function {node.name} has more than plain arguments; allowed: names, without default, annotation or decorator"
        if node.name == ENTRY and names != ARGUMENTS:
            yield f"{ENTRY} takes {', '.join(names) or 'nothing'}; allowed: {', '.join(ARGUMENTS)}"
        reserved = [name for name in names if name in self._reserved or _is_private(name)]
        reserved += [node.name] if node.name in BUILTINS | {"np"} or _is_private(node.name) else []
        for name in reserved:
            yield f"{name} may not be defined: {_RESERVED}"

    def _name_messages(self, node: ast.Name) -> Iterator[str]:
        if _is_private(node.id):
            yield f"the name {node.id} is not allowed; allowed: names without __"
        elif isinstance(node.ctx, ast.Store):
            if node.id in self._reserved:
                yield f"{node.id} may not be assigned: {_RESERVED}"
        elif node.id not in self._bound:
            yield f"the name {node.id} is not allowed; allowed: np, {', '.join(sorted(BUILTINS))} and the code's own"
        elif node.id in self._callable and id(node) not in self._called:
            yield f"{node.id} may only be called"
        elif node.id == "np" and id(node) not in self._based:
            yield "np may only be read from"

    def _call_messages(self, node: ast.Call) -> Iterator[str]:
        called = node.func
        if isinstance(called, ast.Name):
            if called.id in self._bound - self._callable:
                yield f"{called.id} may not be called; allowed: functions of np and the code's own"
        elif not (isinstance(called, ast.Attribute) and _is_numpy(called.value)):
            yield "what is called must be a name; allowed: functions of np and the code's own"
        for each in node.keywords:
            if each.arg not in KEYWORDS:
                yield f"the keyword {each.arg or '**'} is not allowed; allowed: {', '.join(sorted(KEYWORDS))}"


_CONSTRUCTS: Final = "functions, for, if, assignments, arithmetic, comparisons, calls and slices"
_RESERVED: Final = "it is a name of Python's, of numpy's or of a function, or has __ in it"


def _stored_names(nodes: Sequence[ast.AST]) -> set[str]:
    names = (node for node in nodes if isinstance(node, ast.Name))
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


def _assign_messages(node: ast.Assign) -> Iterator[str]:
    if len(node.targets) > 1:
        yield "a value is assigned to several targets; allowed: one"


def _for_messages(node: ast.For) -> Iterator[str]:
    if node.orelse:
        yield "for has an else; allowed: none"


def _attribute_messages(node: ast.Attribute) -> Iterator[str]:
    if not isinstance(node.ctx, ast.Load):
        yield f"the attribute {node.attr} may only be read"
    if _is_numpy(node.value):
        if node.attr not in NUMPY:
            yield f"np.{node.attr} is not allowed; allowed: {', '.join(sorted(NUMPY))}"
    elif node.attr not in ATTRIBUTES:
        yield f"the attribute {node.attr} is not allowed; allowed: {', '.join(sorted(ATTRIBUTES))}"


def _constant_messages(node: ast.Constant) -> Iterator[str]:
    value = node.value
    if not isinstance(value, bool | int | float | str):
        yield f"a constant of type {type(value).__name__} is not allowed; allowed: numbers, texts, True, False"
    elif isinstance(value, int) and value > MAX_INTEGER:
        yield f"a whole number is above {MAX_INTEGER}; allowed: at most that"


def _is_numpy(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "np"


def _is_private(name: str) -> bool:
    return "__" in name

"""Code that is generated is made of what is named in one list; everything else is refused before it is run."""

import pytest

from agentic_trading.desk.planning.allowlist import MAX_BYTES, code_problems

HEAD = "import numpy as np\n\n\ndef target_weights(close, volume, catalyst, rebalance):\n"
GOOD = HEAD + "    return np.zeros(close.shape)\n"


def within(*lines: str) -> str:
    """Return code whose function has these lines."""
    return HEAD + "".join(f"    {line}\n" for line in (*lines, "return np.zeros(close.shape)"))


def refused(code: str) -> list[str]:
    """Return what is wrong with `code`."""
    return [problem.message for problem in code_problems(code)]


@pytest.mark.parametrize(
    "line",
    [
        "x = close[-1]",
        "x = 1 if close is None else 2".replace(" if close is None else 2", ""),
        "close_mean = np.mean(close[1:5], axis=0)",
        "order = np.argsort(close[0], kind='stable')",
        "rows, stocks = close.shape",
        "x = max(len(close), 3)",
        "x = close > 1 and close < 2 or not close == 3",
        "x = ~(close > 1) & (volume > 2) | (volume < 1)",
        "total = 0\n    for t in range(10):\n        total += t",
        "if close[0, 0] > 1:\n        x = 1",
        "x = -1 + 2 * 3 / 4 // 5 % 6 ^ 7",
        "x = np.nan",
        "'a comment'",
        "np.isnan(close)",
    ],
)
def test_listed_code_passes(line: str) -> None:
    assert refused(within(line)) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import os", "this import is not allowed"),
        ("from numpy import load", "ImportFrom is not allowed"),
        ("x = os", "the name os is not allowed"),
        ("x = open('f')", "the name open is not allowed"),
        ("x = print", "the name print is not allowed"),
        ("x = __import__('os')", "the name __import__ is not allowed; allowed: names without __"),
        ("x = close.__class__", "the attribute __class__ is not allowed; allowed: shape"),
        ("x = close.dtype", "the attribute dtype is not allowed; allowed: shape"),
        ("close.tofile('f')", "the attribute tofile is not allowed"),
        ("close.shape = (1, 2)", "the attribute shape may only be read"),
        ("x = np.load('f')", "np.load is not allowed; allowed: abs, argsort"),
        ("x = np.core.os", "np.core is not allowed"),
        ("np.max = 1", "the attribute max may only be read"),
        ("x = np", "np may only be read from"),
        ("x = np[0]", "np may only be read from"),
        ("np = close", "np may not be assigned"),
        ("max = close", "max may not be assigned"),
        ("x = range", "range may only be called"),
        ("x = target_weights", "target_weights may only be called"),
        ("target_weights = close", "target_weights may not be assigned"),
        ("x = close(1)", "close may not be called"),
        ("x = close[0](1)", "what is called must be a name"),
        ("x = close.shape(1)", "what is called must be a name"),
        ("x = np.sum(close, out=close)", "the keyword out is not allowed; allowed: axis, kind"),
        ("x = np.sum(**close)", "the keyword ** is not allowed"),
        ("x = np.sum(*close)", "Starred is not allowed"),
        ("x = [t for t in close]", "ListComp is not allowed"),
        ("x = [1]", "List is not allowed"),
        ("x = {}", "Dict is not allowed"),
        ("x = lambda: 1", "Lambda is not allowed"),
        ("x = f'{close}'", "JoinedStr is not allowed"),
        ("while True:\n        x = 1", "While is not allowed"),
        ("x = 9**99", "Pow is not allowed"),
        ("x = 1 << 30", "LShift is not allowed"),
        ("x = close @ close", "MatMult is not allowed"),
        ("x = close is close", "Is is not allowed"),
        ("x = 1 if 2 else 3", "IfExp is not allowed"),
        ("x = 10000001", "a whole number is above 10000000"),
        (f"x = {'9' * 4000}", "a whole number is above 10000000"),
        ("x = 1j", "a constant of type complex is not allowed"),
        ("x = b'a'", "a constant of type bytes is not allowed"),
        ("x = None", "a constant of type NoneType is not allowed"),
        ("x = y = 1", "a value is assigned to several targets"),
        ("x: int = 1", "AnnAssign is not allowed"),
        ("(x := 1)", "NamedExpr is not allowed"),
        ("global x", "Global is not allowed"),
        ("del close", "Delete is not allowed"),
        ("assert close", "Assert is not allowed"),
        ("raise close", "Raise is not allowed"),
        ("try:\n        x = 1\n    except close:\n        x = 2", "Try is not allowed"),
        ("with close:\n        x = 1", "With is not allowed"),
        ("yield close", "Yield is not allowed"),
        ("pass", "Pass is not allowed"),
        ("for t in close:\n        x = 1\n    else:\n        x = 2", "for has an else"),
        ("def f():\n        return 1", "function f stands within another"),
        ("class C:\n        x = 1", "ClassDef is not allowed"),
        ("match close:\n        case 1:\n            x = 1", "Match is not allowed"),
    ],
)
def test_unlisted_code_is_rejected_with_reason(line: str, message: str) -> None:
    found = refused(within(line))

    assert any(each.startswith(message) for each in found), found
    assert all("allowed" in each or "may" in each or "must" in each for each in found)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("", "there must be exactly one function target_weights(close, volume, catalyst, rebalance)"),
        (GOOD + GOOD.partition("\n\n\n")[2], "there must be exactly one function"),
        (GOOD.replace("volume, ", ""), "target_weights takes close, catalyst, rebalance; allowed:"),
        (GOOD.replace("rebalance)", "rebalance=1)"), "function target_weights has more than plain arguments"),
        (GOOD.replace("rebalance)", "rebalance, *more)"), "function target_weights has more than plain"),
        (
            GOOD.replace("close, v", "close: np.nan, v"),
            "function target_weights has more than plain arguments",
        ),
        (GOOD.replace("):", ") -> np.nan:"), "function target_weights has more than plain arguments"),
        (GOOD.replace("def ", "@np.max\ndef "), "function target_weights has more than plain arguments"),
        (GOOD.replace("def ", "async def "), "AsyncFunctionDef is not allowed"),
        (
            GOOD + "\n\ndef f(a):\n    return a\n\n\ndef f(a):\n    return a\n",
            "functions are defined twice: f",
        ),
        (GOOD + "\n\ndef max(a):\n    return a\n", "max may not be defined"),
        (GOOD + "\n\ndef f(np):\n    return np\n", "np may not be defined"),
        (GOOD + "\n\ndef f(target_weights):\n    return 1\n", "target_weights may not be defined"),
        (GOOD + "\n\ndef __f__(a):\n    return a\n", "__f__ may not be defined"),
        (GOOD + "\nx = 1\n", "at the top are allowed: import numpy as np, and functions"),
        (GOOD + "\nnp.zeros(3)\n", "at the top are allowed: import numpy as np, and functions"),
        (GOOD.replace("numpy as np", "numpy"), "this import is not allowed"),
        (GOOD.replace("numpy as np", "os as np"), "this import is not allowed"),
        (GOOD.replace("numpy as np", "numpy as np, os"), "this import is not allowed"),
        ("def target_weights(", "the code is no Python"),
        ("x = '\0'", "the code is no Python"),
        (f"x = {'(' * 500}", "the code is no Python"),
        (f"# {'x' * MAX_BYTES}\n{GOOD}", "the code has more than 20000 bytes"),
        (within(*["x = 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1"] * 200), "the code has more than 3000 nodes"),
        (f"# coding: utf-7\n{GOOD}", "the code declares an encoding"),
        (f"# a comment\rimport os\n{GOOD}", "this import is not allowed"),
        (f"# a comment\x0cimport os\n{GOOD}", ""),
    ],
)
def test_module_contains_import_and_functions_only(code: str, message: str) -> None:
    found = refused(code)

    if message:
        assert any(each.startswith(message) for each in found), found
    else:
        assert found == []


def test_problems_have_lines_in_order() -> None:
    code = "# made by a template\n\n" + within("x = open('f')", "y = np.load('f')")

    problems = code_problems(code)

    assert [problem.line for problem in problems] == [7, 8]
    assert problems[0].text.startswith("line 7: the name open is not allowed")


def test_comments_do_not_affect_verdict() -> None:
    bad = within("x = open('f')")

    assert refused(f"# one\n{bad}") == refused(f"# other\n# more\n{bad}") == refused(bad)
    assert code_problems(f"# one\n{GOOD}") == code_problems(GOOD) == ()

"""The figures of prose: which texts are counted, and which patterns."""

import ast

import pytest

from benchmarks.house import Module
from tools import prose
from tools.prose import Prose, breaches, by_kind, figures, page_text


def module(text: str) -> Module:
    return Module("agentic_trading/planted.py", text, ast.parse(text))


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Return what was paid.", "what"),
        ("Return the calls which were paid.", "clauses"),
        ("It is closed; it stays closed.", "semicolons"),
        ("It raises nothing.", "negated nouns"),
        ("The log says so.", "people's verbs"),
        ("It stands in the log.", "stands"),
    ],
)
def test_planted_pattern_is_counted(text: str, pattern: str) -> None:
    planted = " ".join([text] * 10)

    assert figures([Prose("docs", "pages", planted)]).per_1000[pattern] > 100


def test_question_word_is_not_counted() -> None:
    found = figures([Prose("docs", "pages", "What does it cost? It is free.")]).per_1000

    assert (found["what"], found["clauses"]) == (0, 0)


def test_null_value_is_not_a_negation() -> None:
    assert figures([Prose("docs", "pages", "Return the claim, or None.")]).per_1000["negated nouns"] == 0


def test_page_code_is_not_prose() -> None:
    assert "what" not in page_text("See `what()` and [the page](what.md).\n```sh\necho what; exit\n```\n")


def test_every_module_text_is_found() -> None:
    planted = module(
        '"""Return what is left."""\n'
        'LIMIT = 1\n"""The limit."""\n'
        'app.option(help="What to do.")\nsay(f"{n} lines; done")\nraise OptionError(f"no {name}")\n'
        "def test_what_is_left_is_kept(): ...\n"
        "x = 1  # the server closes it, because it is idle\ny = 2  # the second\n"
    )

    assert list(prose.docstrings(planted)) == ["Return what is left.", "The limit."]
    assert sorted(prose.messages(planted)) == [" lines; done", "What to do.", "no "]
    assert list(prose.names_of_tests(planted)) == ["what is left is kept."]
    assert prose.reasons(planted) == 1


def test_figure_above_limit_is_breach() -> None:
    found = by_kind([Prose("docs", "pages", "What is left; what is kept.")])
    limits = {"pages": dict.fromkeys(prose.PATTERNS, 0.0)}

    assert [breach.partition(" is ")[0] for breach in breaches(found, limits)] == [
        "pages: what",
        "pages: clauses",
        "pages: semicolons",
    ]

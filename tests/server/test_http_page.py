"""The page about the HTTP server has the fields of each API as they are, and every status and code."""

import re
from collections.abc import Iterable

import pytest

from agentic_trading.llm.verbatim import ASKED
from agentic_trading.server import errors
from agentic_trading.server.calls import TABLES
from agentic_trading.server.errors import HttpFailure
from agentic_trading.server.fields import FieldTable
from tests.pages import ROOT

PAGE = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.api)
def test_page_has_the_fields_of_each_api(table: FieldTable) -> None:
    cells = (listed(ASKED[table.api]), listed(table.ours), listed(table.dropped), listed(table.refused))

    assert f"| `{table.api}` | {' | '.join(cells)} |" in PAGE
    assert all(f"| `{table.api}` | `{name}` | {why} |" in PAGE for name, why in table.refused.items())


def test_page_has_each_failure() -> None:
    failures = {one for one in vars(errors).values() if isinstance(one, HttpFailure)} | set(
        errors._BY_KIND.values()
    )
    rows = [line for line in PAGE.splitlines() if re.match(r"\| \d", line)]

    missing = [
        one
        for one in failures
        if not any(
            str(one.status) in row and f"`{one.code}`" in row and f"`{one.kind}`" in row for row in rows
        )
    ]
    assert missing == []

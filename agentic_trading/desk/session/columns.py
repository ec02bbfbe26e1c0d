"""The columns that the user names with `--columns`."""

from collections.abc import Mapping
from typing import Final

from agentic_trading.desk.market.bar_cells import CELLS
from agentic_trading.desk.market.bar_rows import ADJUSTED, plain_name
from agentic_trading.platform.errors import OptionError

FIELDS: Final = (*CELLS, "symbol")
"""The fields that `--columns` can name."""


def named_columns(text: str) -> Mapping[str, str]:
    """Return the columns in `FIELD=NAME,FIELD=NAME` by field. An empty text has none.

    Raises:
        OptionError: If a part is not a field and a name, a field or a name occurs twice, or an adjusted price
            is named.

    """
    columns: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        field, equals, name = (each.strip() for each in part.partition("="))
        if not equals or field not in FIELDS:
            allowed = f"FIELD=NAME, separated by commas, with the fields {', '.join(FIELDS)}"
            raise OptionError("--columns", repr(part), allowed)
        if plain_name(name) in ADJUSTED:
            allowed = (
                "a price as it was traded. An adjusted price has later splits and dividends in it, so a "
                "backtest would look ahead"
            )
            raise OptionError("--columns", repr(part), allowed)
        if field in columns or plain_name(name) in map(plain_name, columns.values()):
            raise OptionError("--columns", repr(text), "each field and each column once")
        columns[field] = name
    return columns

"""Errors of market data.

```
TradingError
└── MarketError
    ├── BarError              a bar that contradicts itself
    ├── BarFormatError        text that is not a bar
    ├── BarSequenceError      a bar that does not follow the one before it
    ├── FeedUnavailableError  a source that cannot be read
    ├── UnclosedBarError      a bar that closes after the requested time
    ├── NoBarsError           a snapshot before the first bar
    ├── PanelValueError       an impossible value of a stock on a day
    ├── PanelFolderError      a folder of a panel whose `panel.toml` is wrong
    ├── EmptyUniverseError    a panel with too few stocks
    ├── UnknownCalendarError  a calendar that no exchange has
    ├── UnknownSampleError    a sample that is not shipped
    └── SampleDamagedError    a shipped sample whose file was changed
```
"""

from collections.abc import Iterable
from datetime import date, datetime

from agentic_trading.errors import TradingError


class MarketError(TradingError):
    """The base class of errors in market data."""


class BarError(MarketError):
    """A bar's values contradict each other or are outside the allowed range."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"bar field {field!r} is {value}; allowed: {allowed}")
        self.field = field
        self.value = value
        self.allowed = allowed


class BarFormatError(MarketError):
    """Text that cannot be read as a bar. `line` counts from 1, `column` is the name in the source."""

    def __init__(self, source: str, line: int, column: str, value: object, allowed: str) -> None:
        super().__init__(f"{source}, line {line}, column {column!r}: {value!r}; allowed: {allowed}")
        self.source = source
        self.line = line
        self.column = column
        self.value = value
        self.allowed = allowed


class BarSequenceError(MarketError):
    """A bar that cannot follow the bar before it. `line` counts lines or bars of the source from 1."""

    def __init__(self, source: str, line: int, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{source}, line {line}: {field} is {value}; allowed: {allowed}")
        self.source = source
        self.line = line
        self.field = field
        self.value = value
        self.allowed = allowed


class FeedUnavailableError(MarketError):
    """A source that cannot be opened or unpacked."""

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(
            f"{source} cannot be read: {reason}. Give a CSV file, plain, .gz or .zip, or a .parquet file"
        )
        self.source = source
        self.reason = reason


class UnclosedBarError(MarketError):
    """A bar that closes after `as_of`. Its use would be look-ahead."""

    def __init__(self, close_time: datetime, as_of: datetime) -> None:
        super().__init__(
            f"a bar that closes at {close_time.isoformat()} does not exist yet at {as_of.isoformat()}; "
            "allowed: bars with close_time <= as_of"
        )
        self.close_time = close_time
        self.as_of = as_of


class NoBarsError(MarketError):
    """A snapshot was requested before the first closed bar."""

    def __init__(self, symbol: str) -> None:
        super().__init__(
            f"there is no closed bar of {symbol} yet. Push at least one bar before you take a snapshot"
        )
        self.symbol = symbol


class PanelValueError(MarketError):
    """A value of a panel that is not allowed.

    A day without a bar of a stock has no row, and is not an error. `line` counts from 1, if it is known.
    """

    def __init__(
        self,
        panel: str,
        symbol: str,
        day: date | str,
        column: str,
        value: object,
        allowed: str,
        line: int | None = None,
    ) -> None:
        where = panel if line is None else f"{panel}, line {line}"
        super().__init__(f"{where}, {symbol} on {day}: {column} is {value}; allowed: {allowed}")
        self.panel = panel
        self.line = line
        self.symbol = symbol
        self.day = day
        self.column = column
        self.value = value
        self.allowed = allowed


class PanelFolderError(MarketError):
    """A folder of a panel whose `panel.toml` is missing or wrong."""

    def __init__(self, source: str, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{source}: {field} is {value}; allowed: {allowed}")
        self.source = source
        self.field = field
        self.value = value
        self.allowed = allowed


class EmptyUniverseError(MarketError):
    """A panel in which fewer than two stocks have a price, so that there is no choice."""

    def __init__(self, panel: str, priced: int) -> None:
        super().__init__(f"{panel} has {priced} stocks with a price; allowed: 2 and more")
        self.panel = panel
        self.priced = priced


class UnknownSampleError(MarketError):
    """A name that is not the name of a shipped sample."""

    def __init__(self, name: str, allowed: Iterable[str]) -> None:
        self.name = name
        self.allowed = tuple(allowed)
        super().__init__(f"no sample is called {name!r}; allowed: {', '.join(self.allowed)}")


class UnknownCalendarError(MarketError):
    """A name that is not the name of an exchange's calendar, or a time before its first day."""

    def __init__(self, name: str, reason: str = "there is no calendar with this name") -> None:
        self.name = name
        super().__init__(
            f"calendar {name!r}: {reason}. Allowed: a name of the package exchange_calendars, such as XNYS, "
            "XLON, XHKG, CMES or 24/7"
        )


class SampleDamagedError(MarketError):
    """A shipped file whose SHA-256 is not the registered one."""

    def __init__(self, name: str, expected: str, actual: str) -> None:
        super().__init__(f"sample {name!r} has SHA-256 {actual}, not {expected}. Install the package again")
        self.name = name
        self.expected = expected
        self.actual = actual

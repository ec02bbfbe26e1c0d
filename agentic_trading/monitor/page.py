"""A page of the dashboard: its addresses, its answers, and the entry points of pages of other packages.

TradingError
└── NotShownError                    the page, or an id in its address, is unknown to this dashboard
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

from agentic_trading.errors import TradingError
from agentic_trading.monitor.sources import Sources

PAGES: Final = "agentic_trading.pages"
"""The entry point group of pages. An entry point is a `PageFactory`, such as the class of a page."""


class NotShownError(TradingError, LookupError):
    """A page, or an id in its address, is unknown to this dashboard.

    The text is the same for an id that does not exist and for one of another tenant.
    """

    def __init__(self) -> None:
        super().__init__("This page, or an id in its address, is not known here")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page.

    Attributes:
        path: The path of `DashboardPage.paths` that was asked for, as it is written there.
        parameters: The values of the names in braces in the path.
        query: The values behind the question mark. Of several with one name, this is the last.

    """

    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """A page of the dashboard.

    Attributes:
        template: `PACKAGE/FILE` of the template. It begins with `{% extends layout %}` and fills the blocks
            `title` and `main`.
        page: A frozen view model with texts that are ready to print. The template calls it `page`.
        status: The status of HTTP.

    """

    template: str
    page: object
    status: int = 200


@dataclass(frozen=True, slots=True)
class PlainText:
    """A text that a browser shows as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class HtmlFile:
    """A whole HTML file without script, whose only style is in a `style` element.

    Attributes:
        html: The file.
        style_digest: The SHA-256 of its style in Base64. No other style applies.

    """

    html: str
    style_digest: str


@runtime_checkable
class DashboardPage(Protocol):
    """A page of the dashboard."""

    @property
    def name(self) -> str:
        """Its name in the navigation."""
        ...

    @property
    def paths(self) -> Sequence[str]:
        """Its paths, such as `/calls` and `/calls/{id}`. The first one is that of the navigation."""
        ...

    async def answer(self, request: PageRequest) -> PageAnswer | PlainText | HtmlFile:
        """Return the answer to a request. It shows only records of the tenant of the sources, if there is one.

        Raises:
            NotShownError: If an id in the address is unknown, or of another tenant. The answer is then 404.
            OptionError: If a value of the query is wrong. The answer is then 400 with the text.
            TradingError: If something cannot be read. The answer is then 503 with the text.

        """
        ...


@runtime_checkable
class LivePage(DashboardPage, Protocol):
    """A page that is updated in open browsers. `answer` returns it from the last reading of `refresh`."""

    async def refresh(self) -> None:
        """Read anew. It is called once a second, and its errors are shown on the page."""
        ...


@runtime_checkable
class MeasuredPage(DashboardPage, Protocol):
    """A page whose figures are also served as metrics."""

    async def metrics(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        ...


PageFactory = Callable[[Sources], DashboardPage]
"""Returns a page of sources."""

"""A page as a package may add one: it counts its readings."""

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256

from agentic_trading.monitor.page import HtmlFile, NotShownError, PageAnswer, PageRequest, PlainText
from agentic_trading.monitor.sources import Sources
from agentic_trading.platform.errors import OptionError

STYLE = "p { color: #123456 }"
FILE = f"<!doctype html><html lang='en'><title>File</title><style>{STYLE}</style><p>whole</p>"


@dataclass(frozen=True, slots=True)
class Counted:
    """The view of the page."""

    count: str
    text: str


class CountedPage:
    """Counts how often it was read. `problem` is raised by the next readings."""

    name = "Counted"
    paths = ("/", "/counted/{id}", "/whole", "/plain", "/fails")

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.count = 0
        self.problem: Exception | None = None
        self.is_known = True

    async def refresh(self) -> None:
        """Count one more, or raise the problem."""
        if self.problem is not None:
            raise self.problem
        self.count += 1

    async def answer(self, request: PageRequest) -> PageAnswer | PlainText | HtmlFile:
        """Return an answer of each kind, by path."""
        if not self.is_known:
            raise NotShownError
        match request.path:
            case "/whole":
                return HtmlFile(FILE, b64encode(sha256(STYLE.encode()).digest()).decode())
            case "/plain":
                return PlainText(request.query["text"])
            case "/fails":
                raise self.problem or OptionError("text", "missing", "any text")
            case "/counted/{id}" if request.parameters["id"] != "known":
                raise NotShownError
        text = request.query.get("text", "none")
        return PageAnswer("tests.monitor/counted.html.j2", Counted(f"{self.count:,}", text))

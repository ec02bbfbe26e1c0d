"""The server of the dashboard: its routes, and the rules that keep it read-only and private."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import web

from agentic_trading.cancellation import OwnedTasks, on_first_signal
from agentic_trading.errors import TradingError
from agentic_trading.logger import get_logger
from agentic_trading.monitor import page as page_api
from agentic_trading.monitor.access import TokenCheck, is_own_host, read_token, security_headers
from agentic_trading.monitor.live import MOST_STREAMS, LiveParts
from agentic_trading.monitor.pages import pages_of
from agentic_trading.monitor.render import packaged, rendered
from agentic_trading.monitor.sources import SourceOptions, Sources, open_sources
from agentic_trading.platform.errors import OptionError
from agentic_trading.platform.listener import listening
from agentic_trading.platform.status_pages import host_and_port

log = get_logger()

PACKAGE: Final = "agentic_trading.monitor"
STATIC: Final = {"style.css": "text/css", "trace.css": "text/css", "live.js": "text/javascript"}
ENTER: Final = "/enter"
SEND_WITHIN_S: Final = 10.0
"""Seconds in which a browser must take a live part. A slower stream is closed."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_WORDS: Final = {
    401: "A token is needed",
    404: "Not found",
    405: "Not allowed",
    421: "Another host",
    429: "Too many tries",
    503: "Not available",
}


@dataclass(frozen=True, slots=True)
class Notice:
    """A banner at the top of a page. `tone` is bad or warn."""

    text: str
    tone: str = "bad"


@dataclass(frozen=True, slots=True)
class Site:
    """The frame of a page.

    Attributes:
        pages: Path and name of each page in the navigation.
        current: The name of the page that is shown, or an empty text.
        place: The sources as a text.
        notices: The banners above the page.
        stream: The address of the live part, or an empty text.

    """

    pages: tuple[tuple[str, str], ...]
    current: str
    place: str
    notices: tuple[Notice, ...] = ()
    stream: str = ""


@dataclass(frozen=True, slots=True)
class ErrorPage:
    """A page with an error. `needs_token` adds a form for the token."""

    title: str
    text: str
    needs_token: bool = False


class Dashboard:
    """Answers requests for pages of sources.

    Args:
        sources: The sources.
        pages: The pages, in the order of the navigation.
        host: The host that the server is bound to.
        token: The token that browsers must enter. An empty one lets everyone in.

    """

    def __init__(
        self, sources: Sources, pages: Sequence[page_api.DashboardPage], *, host: str, token: str = ""
    ) -> None:
        self._sources = sources
        self._pages = tuple(pages)
        self._host = host
        self._token = TokenCheck(token)
        self._live = LiveParts([each for each in pages if isinstance(each, page_api.LivePage)], self._part)

    def application(self) -> web.Application:
        """Return the application, which also reads the live pages while it runs."""
        app = web.Application(middlewares=[self._guarded], client_max_size=8192)
        app.on_response_prepare.append(_add_headers)
        app.cleanup_ctx.append(self._reading)
        app.on_shutdown.append(lambda _: self._live.aclose())
        app.router.add_get("/static/{name}", self._static_file)
        app.router.add_get("/favicon.ico", _no_icon)  # browsers ask for it next to a page without a link
        if self._token.is_needed:
            app.router.add_post(ENTER, self._enter)
        for page in self._pages:
            if isinstance(page, page_api.MeasuredPage):
                app.router.add_get("/metrics", partial(self._metrics, page))
            for path in page.paths:
                app.router.add_get(path, partial(self._page, page, path))
            if isinstance(page, page_api.LivePage):
                app.router.add_get(_stream_path(page), partial(self._stream, page))
        return app

    async def _reading(self, _app: web.Application) -> AsyncGenerator[None]:
        tasks = OwnedTasks()
        reading = tasks.start(self._live.run(), name="dashboard-reading")
        yield
        reading.cancel()
        await tasks.aclose()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check host, token and method, and turn errors into pages."""
        # Not `request.host`, which asks the resolver for the name of this machine if there is no header.
        if not is_own_host(request.headers.get("host", ""), self._host):
            # A page of another origin must not reach this server by a name of its own (DNS rebinding).
            return await self._error(
                request, 421, f"This server answers only as {self._host}. Open it under this name."
            )
        if not self._is_let_in(request):
            return await self._refused(request)
        try:
            return await handler(request)
        except Exception as e:  # noqa: BLE001 - a browser must not see the inside of the program
            return await self._problem(request, e)

    async def _problem(self, request: web.Request, e: Exception) -> web.StreamResponse:
        """Return the page of an error."""
        match e:
            case web.HTTPMethodNotAllowed():
                answer = await self._error(
                    request, 405, "This dashboard is read-only. Allowed: GET and HEAD."
                )
                answer.headers["Allow"] = ", ".join(sorted(e.allowed_methods))
                return answer
            case web.HTTPNotFound() | page_api.NotShownError():
                return await self._error(request, 404, f"{page_api.NotShownError()}.")
            case web.HTTPException():
                return await self._error(request, e.status, f"{e.reason}.")
            case OptionError():
                return await self._error(request, 400, f"{self._sources.without_paths(str(e))}.")
            case TradingError():
                return await self._error(request, 503, f"{self._sources.without_paths(str(e))}.")
            case _:
                pass
        # In a thread, because a traceback reads source files.
        await asyncio.to_thread(log.error, "dashboard_page_failed", path=request.path, exc_info=e)
        text = "This page cannot be shown because of an internal error. It is in the log of the dashboard."
        return await self._error(request, 500, text)

    def _is_let_in(self, request: web.Request) -> bool:
        """Return whether a request has the token, or does not need it."""
        return request.path == ENTER or request.path.startswith("/static/") or self._has_token(request)

    def _has_token(self, request: web.Request) -> bool:
        if not self._token.is_needed:
            return True
        if self._token.has_cookie(request.cookies.get(_cookie_name(request), "")):
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme == "Bearer" and self._token.accepts(given)

    async def _refused(self, request: web.Request) -> web.Response:
        if self._token.is_locked:
            return await self._error(
                request, 429, "Five wrong tokens within a minute. Wait a minute, then try again."
            )
        return await self._error(request, 401, "Enter the token of this dashboard.", needs_token=True)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        form = await request.post()
        if not self._token.accepts(str(form.get("token", ""))):
            if self._token.is_locked:
                return await self._refused(request)
            return await self._error(request, 401, "This is not the token. Try again.", needs_token=True)
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(_cookie_name(request), self._token.cookie, httponly=True, samesite="Strict")
        return answer

    async def _static_file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in STATIC:
            raise page_api.NotShownError
        text = await asyncio.to_thread(packaged, PACKAGE, name, folder="static")
        return web.Response(text=text, content_type=STATIC[name], charset="utf-8")

    async def _page(self, page: page_api.DashboardPage, path: str, request: web.Request) -> web.Response:
        if isinstance(page, page_api.LivePage):
            await self._live.ready(page.name)
        answer = await page.answer(_request_of(request, path))
        match answer:
            case page_api.HtmlFile(html, digest):
                return _html(html, headers=security_headers(digest))
            case page_api.PageAnswer():
                stream = (
                    f"{_stream_path(page)}?{request.rel_url.raw_query_string}"
                    if isinstance(page, page_api.LivePage)
                    else ""
                )
                status = 503 if self._live.problem(page.name) else answer.status
                return _html(await self._rendered(page, answer, "base", stream), status)
            case plain:
                return web.Response(text=plain.text, content_type="text/plain", charset="utf-8")

    async def _metrics(self, page: page_api.MeasuredPage, request: web.Request) -> web.Response:
        await self._live.ready(page.name)
        if problem := self._live.problem(page.name):
            return await self._error(request, 503, f"{self._sources.without_paths(problem)}.")
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=await page.metrics(), headers=headers)

    async def _stream(self, page: page_api.LivePage, request: web.Request) -> web.StreamResponse:
        """Send the live part of a page each time it changes."""
        wanted = _request_of(request, page.paths[0])
        await self._live.ready(page.name)
        await page.answer(wanted)  # an unknown id is not watched
        if self._live.is_full:
            return await self._error(
                request, 503, f"{MOST_STREAMS} browsers are updated at once, and no more."
            )
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        with suppress(ConnectionResetError):  # the browser has gone
            async for part in self._live.stream(page, wanted):
                # A carriage return would end a line of the stream too, and text could then add events.
                lines = "".join(f"data: {line}\n" for line in part.replace("\r", "\n").split("\n"))
                try:
                    async with asyncio.timeout(SEND_WITHIN_S):
                        await answer.write(f"event: part\n{lines}\n".encode())
                except TimeoutError:
                    if request.transport is not None:
                        request.transport.abort()
                    break
        return answer

    async def _part(self, page: page_api.LivePage, request: page_api.PageRequest) -> str:
        answer = await page.answer(request)
        return await self._rendered(page, answer, "part") if isinstance(answer, page_api.PageAnswer) else ""

    async def _rendered(
        self, page: page_api.DashboardPage, answer: page_api.PageAnswer, layout: str, stream: str = ""
    ) -> str:
        site = Site(self._navigation, page.name, self._sources.place, await self._notices(page), stream)
        # In a thread, because a page of thousands of counters takes long.
        return await asyncio.to_thread(
            rendered, answer.template, page=answer.page, site=site, layout=f"{PACKAGE}/{layout}.html.j2"
        )

    async def _notices(self, page: page_api.DashboardPage) -> tuple[Notice, ...]:
        found = [Notice(f"{text}.") for text in await self._sources.problems()]
        if problem := self._live.problem(page.name):
            text = self._sources.without_paths(problem)
            found.append(Notice(f"The figures below are old, because they cannot be read now: {text}."))
        return tuple(found)

    @property
    def _navigation(self) -> tuple[tuple[str, str], ...]:
        return tuple((page.paths[0], page.name) for page in self._pages)

    async def _error(
        self, request: web.Request, status: int, text: str, *, needs_token: bool = False
    ) -> web.Response:
        # Others learn nothing of the sources. The form and the styles are served to all, and fail for all.
        is_known = status not in {401, 421, 429} and self._has_token(request)
        site = Site(self._navigation if is_known else (), "", self._sources.place if is_known else "")
        page = ErrorPage(_WORDS.get(status, HTTPStatus(status).phrase), text, needs_token)
        template, layout = f"{PACKAGE}/error.html.j2", f"{PACKAGE}/base.html.j2"
        html = await asyncio.to_thread(rendered, template, page=page, site=site, layout=layout)
        return _html(html, status)


@asynccontextmanager
async def dashboard_server(dashboard: Dashboard, host: str, port: int) -> AsyncGenerator[str]:
    """Serve a dashboard while the block runs. Yields its URL. Port 0 selects a free port.

    Raises:
        ListenError: If the address cannot be used.

    """
    async with listening(dashboard.application(), host, port, end_within_s=SEND_WITHIN_S) as url:
        yield url


async def serve_dashboard(
    options: SourceOptions, address: str, token_file: Path | None, started: Callable[[str], None]
) -> None:
    """Serve the pages of sources until the first SIGINT or SIGTERM.

    Args:
        options: The sources.
        address: HOST:PORT.
        token_file: The file of the token. Without it, the host must be this machine alone.
        started: It is called with the URL when the pages can be opened.

    Raises:
        ListenError: If the address cannot be used.
        OptionError: If a source does not exist, or a token is missing or too short.

    """
    host, port = host_and_port(address)
    token = await asyncio.to_thread(read_token, token_file, host)
    async with open_sources(options) as sources:
        pages = await asyncio.to_thread(pages_of, sources)
        dashboard = Dashboard(sources, pages, host=host, token=token)
        async with dashboard_server(dashboard, host, port) as url:
            started(url)
            ends = asyncio.Event()
            with on_first_signal(ends.set):
                await ends.wait()


async def _no_icon(_request: web.Request) -> web.Response:
    return web.Response(status=HTTPStatus.NO_CONTENT)


async def _add_headers(_request: web.Request, answer: web.StreamResponse) -> None:
    for name, value in security_headers().items():
        answer.headers.setdefault(name, value)
    # Replaced, because the default names the versions of Python and aiohttp.
    answer.headers["Server"] = "agentic-trading"


def _html(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", charset="utf-8", headers=headers)


def _request_of(request: web.Request, path: str) -> page_api.PageRequest:
    return page_api.PageRequest(path, dict(request.match_info), dict(request.query))


def _stream_path(page: page_api.DashboardPage) -> str:
    return f"/events/{page.name.lower()}"


def _cookie_name(request: web.Request) -> str:
    # Browsers send a cookie to all ports of a host, and two dashboards have two tokens.
    port = request.host.rpartition(":")[2]
    return f"agentic_dashboard_{port if port.isdecimal() else 'default'}"

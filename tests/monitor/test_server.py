"""The server of the dashboard: what it answers, and to whom."""

import re
from contextlib import ExitStack
from html import escape, unescape
from http.client import HTTPConnection
from itertools import islice
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from agentic_trading.llm.errors import StoreError
from agentic_trading.monitor.live import MOST_STREAMS
from agentic_trading.monitor.page import DashboardPage
from agentic_trading.monitor.sources import SourceOptions, Sources
from agentic_trading.platform.errors import OptionError
from tests.monitor.conftest import RunningDashboard, StartDashboard
from tests.monitor.counted import FILE, CountedPage
from tests.monitor.record_pages import HOSTILE, LEGIBLE


@pytest.fixture
def made() -> list[CountedPage]:
    """Return the pages that were made, to reach into them."""
    return []


@pytest.fixture
def shown(dashboard: StartDashboard, made: list[CountedPage], tmp_path: Path) -> RunningDashboard:
    """Return a dashboard with one page that counts."""

    def pages(sources: Sources) -> list[DashboardPage]:
        made.append(CountedPage(sources))
        return [made[-1]]

    return dashboard(SourceOptions((tmp_path,)), pages=pages)


def test_page_has_navigation_and_figures(shown: RunningDashboard) -> None:
    found = shown.get("/?text=seen")

    assert found.status == 200
    assert '<a href="/" aria-current="page">Counted</a>' in found.text
    assert '<p id="text">seen</p>' in found.text
    assert 'data-live="/events/counted?text=seen"' in found.text


@pytest.mark.parametrize("text", ["a&b=c", "a+b", "%41", "ä"])
def test_stream_has_the_query_of_its_page(text: str, shown: RunningDashboard) -> None:
    page = shown.get(f"/?text={quote(text)}").text

    address = re.search('data-live="([^"]*)"', page)
    assert address is not None
    [part] = shown.events(unescape(address[1]), lambda _: True)
    assert f'<p id="text">{escape(text)}</p>' in part


def test_stream_sends_what_changed(shown: RunningDashboard) -> None:
    connection = HTTPConnection(urlsplit(shown.url).netloc, timeout=20)
    connection.request("GET", "/events/counted?text=a%0Devent:%20b")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    parts = [[*iter(answer.readline, b"\n")] for _ in range(2)]
    connection.close()

    assert [part[0] for part in parts] == [b"event: part\n"] * 2
    assert all(line.startswith(b"data: ") for part in parts for line in part[1:])
    counts = [next(line for line in part if b'id="count"' in line) for part in parts]
    assert counts[0] != counts[1]


def test_hostile_text_is_text(shown: RunningDashboard) -> None:
    found = shown.get(f"/?text={quote('<script>alert(1)</script>')}")

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in found.text
    assert found.text.count("<script") == 1


def test_every_answer_has_the_headers(shown: RunningDashboard) -> None:
    for path in ("/", "/static/style.css", "/static/live.js", "/plain?text=a", "/nowhere", "/fails"):
        headers = shown.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Server"] == "agentic-trading"


def test_whole_file_may_only_have_its_style(shown: RunningDashboard) -> None:
    found = shown.get("/whole")

    assert found.text == FILE
    policy = found.headers["Content-Security-Policy"]
    assert "style-src 'sha256-" in policy
    assert "script-src" not in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_refused(method: str, shown: RunningDashboard) -> None:
    found = shown.get("/", method=method)

    assert (found.status, found.headers["Allow"]) == (405, "GET, HEAD")
    assert "read-only" in found.text


def test_head_has_no_body(shown: RunningDashboard) -> None:
    for path in ("/", "/events/counted"):
        found = shown.get(path, method="HEAD")
        assert (found.status, found.text) == (200, "")


@pytest.mark.parametrize(
    "path", ["/nowhere", "/counted/other", "/static/other.css", "/static/..%2Fserver.py"]
)
def test_unknown_path_is_not_found(path: str, shown: RunningDashboard) -> None:
    found = shown.get(path)

    assert found.status == 404
    assert "is not known here" in found.text
    assert shown.get("/counted/known").status == 200


@pytest.mark.parametrize(
    "host", ["attacker.example", "attacker.example:8765", "", "127.0.0.1.attacker.example"]
)
def test_foreign_host_is_refused(host: str, shown: RunningDashboard) -> None:
    found = shown.get("/", Host=host)

    assert found.status in {400, 421}
    assert "Counted" not in found.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:8765"])
def test_names_of_this_machine_are_accepted(host: str, shown: RunningDashboard) -> None:
    assert shown.get("/", Host=host).status == 200


def test_wrong_query_is_shown(shown: RunningDashboard) -> None:
    found = shown.get("/fails")

    assert found.status == 400
    assert "text is missing" in found.text


def test_control_characters_are_escaped_on_every_page(shown: RunningDashboard) -> None:
    found = shown.get(f"/?text={quote(HOSTILE)}").text

    assert f'<p id="text">{escape(LEGIBLE).replace("&quot;", "&#34;")}</p>' in found
    assert not {"\x1b", "\u202e", "\x00"} & {*found}


@pytest.mark.parametrize("status", [400, 503])
def test_unreadable_source_is_shown_without_paths(
    status: int, shown: RunningDashboard, made: list[CountedPage], tmp_path: Path
) -> None:
    file = tmp_path / "interactions.jsonl"
    made[0].problem = (
        OptionError(str(file), "missing", "a log") if status == 400 else StoreError(file, "is missing")
    )

    found = shown.get("/fails")

    assert found.status == status
    assert f"{tmp_path.name}/interactions.jsonl" in found.text
    assert str(tmp_path) not in found.text


def test_internal_error_is_shown_without_its_text(shown: RunningDashboard, made: list[CountedPage]) -> None:
    made[0].problem = RuntimeError("secret")

    found = shown.get("/fails")

    assert found.status == 500
    assert "secret" not in found.text


def test_streams_are_limited_and_freed(shown: RunningDashboard) -> None:
    with ExitStack() as stack:
        connections = [HTTPConnection(urlsplit(shown.url).netloc, timeout=20) for _ in range(MOST_STREAMS)]
        for connection in connections:
            stack.callback(connection.close)
            connection.request("GET", "/events/counted")
        answers = [connection.getresponse() for connection in connections]
        assert {(answer.status, answer.readline()) for answer in answers} == {(200, b"event: part\n")}
        refused = shown.get("/events/counted")

        assert (refused.status, f"{MOST_STREAMS} browsers" in refused.text) == (503, True)
        assert shown.get("/").status == 200

    # A closed stream is noticed when the next part is sent to it.
    statuses = iter(lambda: shown.get("/events/counted", method="HEAD").status, 200)
    assert len([*islice(statuses, 2_000)]) < 2_000


def test_failing_reading_is_a_banner_and_the_page_stays(
    shown: RunningDashboard, made: list[CountedPage]
) -> None:
    assert shown.get("/").status == 200
    made[0].problem = ValueError("secret")

    (*_, part) = shown.events("/events/counted", lambda part: "cannot be read now" in part)

    assert "internal error (ValueError)" in part
    assert "secret" not in part
    assert shown.get("/").status == 503


def test_part_that_is_no_longer_known_ends_its_stream(
    shown: RunningDashboard, made: list[CountedPage]
) -> None:
    connection = HTTPConnection(urlsplit(shown.url).netloc, timeout=20)
    connection.request("GET", "/events/counted")
    answer = connection.getresponse()
    assert answer.readline() == b"event: part\n"
    made[0].is_known = False

    assert b"</main>" not in answer.read()  # it returns, because the server has closed the stream
    connection.close()

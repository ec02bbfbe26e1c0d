"""Who may read the dashboard: hosts, tokens, tries, and the view of one tenant."""

from datetime import timedelta
from http.cookies import SimpleCookie
from pathlib import Path

import pytest
from typing_extensions import override

from agentic_trading.clock import SimClock
from agentic_trading.monitor.access import TokenCheck, is_own_host, read_token
from agentic_trading.monitor.sources import SourceOptions
from agentic_trading.platform.errors import OptionError
from tests.build import NOW
from tests.monitor.conftest import RunningDashboard, StartDashboard

TOKEN = "correct-horse-battery-staple"  # noqa: S105 - of a test


@pytest.fixture
def guarded(dashboard: StartDashboard, tmp_path: Path) -> RunningDashboard:
    """Return a dashboard with a token."""
    return dashboard(SourceOptions((tmp_path,)), token=TOKEN)


def test_page_needs_the_token(guarded: RunningDashboard) -> None:
    found = guarded.get("/")

    assert found.status == 401
    assert '<form class="find" method="post" action="/enter">' in found.text
    assert "Budgets" not in found.text
    assert guarded.get("/static/style.css").status == 200
    for path in ("/events/budgets", "/metrics", "/nowhere"):
        assert guarded.get(path).status == 401


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/enter", None, 405),
        ("GET", "/static/nothing.css", None, 404),
        ("POST", "/enter", "x" * 10_000, 413),
    ],
)
def test_error_without_the_token_names_no_source(
    method: str, path: str, body: str | None, status: int, guarded: RunningDashboard, tmp_path: Path
) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    found = guarded.get(path, method=method, body=body, **form)
    known = guarded.get(path, method=method, body=body, Authorization=f"Bearer {TOKEN}", **form)

    assert found.status == known.status == status
    assert tmp_path.name in known.text
    assert tmp_path.name not in found.text


@pytest.mark.parametrize("name", ["Authorization", "Cookie"])
def test_token_that_is_no_text_is_refused(name: str, guarded: RunningDashboard) -> None:
    port = guarded.url.rpartition(":")[2]
    value = {"Authorization": "Bearer \xff", "Cookie": f"agentic_dashboard_{port}=\xff"}[name]

    assert guarded.get("/", **{name: value}).status == 401


def test_right_token_gives_a_cookie(guarded: RunningDashboard) -> None:
    entered = guarded.enter(TOKEN)
    (cookie,) = SimpleCookie(entered.headers["Set-Cookie"]).values()

    assert (entered.status, entered.headers["Location"]) == (303, "/")
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert TOKEN not in entered.headers["Set-Cookie"]
    assert guarded.get("/", Cookie=f"{cookie.key}={cookie.value}").status == 200
    assert guarded.get("/", Cookie=f"{cookie.key}=other").status == 401


def test_header_with_the_token_is_enough(guarded: RunningDashboard) -> None:
    assert guarded.get("/metrics", Authorization=f"Bearer {TOKEN}").status == 200
    assert guarded.get("/metrics", Authorization=f"Basic {TOKEN}").status == 401


def test_sixth_wrong_token_within_a_minute_is_refused(guarded: RunningDashboard) -> None:
    cookie = guarded.enter(TOKEN).headers["Set-Cookie"].partition(";")[0]

    tries = [guarded.enter(f"wrong-{n}").status for n in range(4)]
    tries += [guarded.get("/", Authorization="Bearer wrong").status]
    locked = guarded.enter(TOKEN)

    assert tries == [401, 401, 401, 401, 429]
    assert (locked.status, "Wait a minute" in locked.text) == (429, True)
    assert guarded.get("/", Cookie=cookie).status == 200  # who has entered is not locked out


def test_form_is_only_for_a_dashboard_with_a_token(dashboard: StartDashboard, tmp_path: Path) -> None:
    assert dashboard(SourceOptions((tmp_path,))).enter(TOKEN).status == 404


def test_large_form_is_refused(guarded: RunningDashboard) -> None:
    assert guarded.enter("x" * 10_000).status == 413


class Stepped(SimClock):
    """A clock whose elapsed time is simulated too."""

    @override
    def monotonic(self) -> float:
        return self.now().timestamp()


def test_lock_ends_after_a_minute() -> None:
    clock = Stepped(NOW)
    check = TokenCheck(TOKEN, clock=clock)
    for _ in range(5):
        assert not check.accepts("wrong")

    assert not check.accepts(TOKEN)
    clock.advance_to(NOW + timedelta(seconds=61))
    assert check.accepts(TOKEN)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "desk.example", "::"])  # noqa: S104 - nothing is bound
def test_other_machines_need_a_token(host: str) -> None:
    with pytest.raises(
        OptionError, match=r"--token-file is missing, and --http .* is not this machine alone"
    ):
        read_token(None, host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.1"])
def test_this_machine_needs_no_token(host: str) -> None:
    assert read_token(None, host) == ""


def test_token_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(OptionError, match=r"token, which cannot be read \(No such file"):
        read_token(file, "127.0.0.1")
    file.write_text("short\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"has 5 characters\. Allowed: at least 16"):
        read_token(file, "127.0.0.1")
    file.write_text(f"  {TOKEN}\n", encoding="utf-8")
    assert read_token(file, "127.0.0.1") == TOKEN


@pytest.mark.parametrize(
    ("header", "bound", "is_own"),
    [
        ("192.0.2.1:8765", "192.0.2.1", True),
        ("desk.example", "desk.example", True),
        ("DESK.example:80", "desk.example", True),
        ("other.example", "desk.example", False),
        ("127.0.0.1", "desk.example", False),
        ("192.0.2.7:8765", "0.0.0.0", True),  # noqa: S104 - nothing is bound
        ("localhost:8765", "0.0.0.0", True),  # noqa: S104 - nothing is bound
        ("[2001:db8::1]:8765", "::", True),
        ("localhost:8765", "192.0.2.1", False),
        ("attacker.example", "0.0.0.0", False),  # noqa: S104 - nothing is bound
        ("attacker.example", "127.0.0.1", False),
        ("", "127.0.0.1", False),
    ],
)
def test_host_must_be_the_bound_one(header: str, bound: str, is_own: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert is_own_host(header, bound) == is_own

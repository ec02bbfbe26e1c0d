"""Each order has a larger serial than every one before, whatever clocks say and whichever actions are still known."""

from collections.abc import Iterable
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.governance.commands import SetLimit, apply_command
from agentic_trading.governance.control_stores.file import read_stored, stored
from agentic_trading.governance.controls_document import KEPT_ACTIONS, TenantControls
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from tests.build import NOW

NOW_MS = int(NOW.timestamp()) * 1000


def ordered(controls: TenantControls, seconds: Iterable[float]) -> list[TenantControls]:
    """Return the documents after an order each, given so many seconds from now by the clocks of who gave them."""
    documents = [controls]
    for second in seconds:
        before = documents[-1]
        limit = Limit(ScopeKind.TENANT, ANY, Window.DAY, calls=before.version)
        at = NOW + timedelta(seconds=second)
        documents.append(apply_command(before, SetLimit(limit), by="ann", why="", at=at))
    return documents[1:]


def test_serial_is_timestamp_or_next_number() -> None:
    serials = [one.serial - NOW_MS for one in ordered(TenantControls(), [60, 0, 0, 60, 61])]

    assert serials == [60_000, 60_001, 60_002, 60_003, 61_000]


@given(st.lists(st.floats(-(10**9), 10**9), min_size=2, max_size=30))
def test_serials_increase_despite_clock_changes(seconds: list[float]) -> None:
    serials = [one.serial for one in ordered(TenantControls(), seconds)]

    assert serials == sorted(set(serials))


def test_serial_survives_removal_of_action() -> None:
    (fast,) = ordered(TenantControls(), [10**7])

    later = ordered(fast, range(KEPT_ACTIONS))[-1]

    assert fast.actions[0] not in later.actions
    assert later.serial == fast.serial + KEPT_ACTIONS


def test_new_store_serial_follows_lost_store() -> None:
    lost = ordered(TenantControls(), range(50))[-1]
    (new,) = ordered(TenantControls(), [60])

    assert (new.version, new.serial > lost.serial) == (1, True)


def test_commands_before_1970_are_numbered() -> None:
    long_ago = ordered(TenantControls(), [-(2 * 10**9), -(2 * 10**9)])

    assert [one.serial for one in long_ago] == [1, 2]
    assert read_stored(stored(long_ago[-1]), "there").serial == 2

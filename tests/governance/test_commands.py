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


def test_a_serial_is_the_moment_of_the_order_or_the_next_one() -> None:
    serials = [one.serial - NOW_MS for one in ordered(TenantControls(), [60, 0, 0, 60, 61])]

    assert serials == [60_000, 60_001, 60_002, 60_003, 61_000]


@given(st.lists(st.floats(-(10**9), 10**9), min_size=2, max_size=30))
def test_serials_grow_whatever_clocks_say(seconds: list[float]) -> None:
    serials = [one.serial for one in ordered(TenantControls(), seconds)]

    assert serials == sorted(set(serials))


def test_a_serial_outlives_the_action_that_it_comes_from() -> None:
    (fast,) = ordered(TenantControls(), [10**7])

    later = ordered(fast, range(KEPT_ACTIONS))[-1]

    assert fast.actions[0] not in later.actions
    assert later.serial == fast.serial + KEPT_ACTIONS


def test_the_first_order_on_a_new_board_comes_after_those_on_a_lost_one() -> None:
    lost = ordered(TenantControls(), range(50))[-1]
    (new,) = ordered(TenantControls(), [60])

    assert (new.version, new.serial > lost.serial) == (1, True)


def test_orders_from_before_1970_are_counted() -> None:
    long_ago = ordered(TenantControls(), [-(2 * 10**9), -(2 * 10**9)])

    assert [one.serial for one in long_ago] == [1, 2]
    assert read_stored(stored(long_ago[-1]), "there").serial == 2

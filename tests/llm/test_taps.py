"""A tap hands events on, never waits, and never hands on a secret."""

import asyncio

from agentic_trading.llm.redaction import Redaction
from agentic_trading.llm.taps import Tap

KEY = "sk-live-0123456789abcdef"


def put(tap: Tap, *texts: str, place: str = "a") -> None:
    """Put events with these texts of one place."""
    for text in texts:
        tap.put("event", f"<{text}>".encode(), [((place,), text)])


async def test_events_are_taken_in_their_order_and_the_last_one_is_kept_back() -> None:
    tap = Tap(Redaction())
    put(tap, "a", "b")
    tap.put("end", b"<end>", [])

    assert tap.is_begun
    assert tap.has_events
    assert not tap.is_read
    assert tap.taken() == b"<a><b>"
    assert tap.is_read
    assert (tap.taken(), tap.has_events, tap.end) == (b"", False, b"<end>")


async def test_wait_ends_with_an_event_with_the_call_or_with_its_time() -> None:
    tap, over = Tap(Redaction()), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(over.wait())
        assert not await tap.wait(call, 0.0)
        waiting = group.create_task(tap.wait(call, 30))
        await asyncio.sleep(0)
        put(tap, "a")
        assert await waiting
        assert await tap.wait(call, 30)
        tap.taken()
        assert not await tap.wait(call, 0.0)
        over.set()
        assert await tap.wait(call, 30)
    assert await tap.wait(call, 30)


async def test_error_does_not_pass_and_usage_only_if_it_is_wanted() -> None:
    tap, wanted = Tap(Redaction(), wants_usage=False), Tap(Redaction())
    tap.put("error", b"<error>", [])
    assert not tap.is_begun
    for each in (tap, wanted):
        each.put("usage", b"<usage>", [])

    assert (tap.is_begun, tap.taken(), wanted.taken()) == (True, b"", b"<usage>")


async def test_tap_closes_if_too_many_bytes_wait() -> None:
    tap = Tap(Redaction(), most_bytes=10)
    put(tap, "1234")
    assert tap.taken() == b"<1234>"
    put(tap, "1234", "1234", "1234")

    assert "The client reads too slowly" in tap.problem
    assert (tap.taken(), tap.is_begun) == (b"", True)


async def test_secret_that_is_split_over_events_does_not_pass_the_tap() -> None:
    tap = Tap(Redaction(KEY))
    put(tap, "the key is ", KEY[:4], KEY[4:9], KEY[9:15])
    assert tap.taken() == f"<the key is ><{KEY[:4]}>".encode()
    put(tap, KEY[15:], "!")

    assert tap.problem == "the answer has a secret of this platform"
    assert tap.taken() == b""


async def test_start_of_a_secret_with_another_end_passes() -> None:
    tap = Tap(Redaction(KEY))
    put(tap, KEY[:10])
    put(tap, "other", place="b")
    assert tap.taken() == b""
    put(tap, "no")

    assert tap.taken() == f"<{KEY[:10]}><other><no>".encode()
    assert not tap.problem


async def test_start_of_a_secret_at_the_end_of_an_answer_goes_with_its_last_event() -> None:
    tap = Tap(Redaction(KEY))
    put(tap, KEY[:10])
    tap.put("end", b"<end>", [])

    assert (tap.taken(), tap.end) == (b"", f"<{KEY[:10]}><end>".encode())


async def test_texts_of_different_places_are_not_joined() -> None:
    tap = Tap(Redaction(KEY))
    put(tap, KEY[:12])
    put(tap, KEY[12:], place="b")

    assert not tap.problem


async def test_secret_in_the_bytes_of_an_event_closes_the_tap() -> None:
    tap = Tap(Redaction())
    tap.guard(secrets := Redaction(KEY))
    tap.guard(secrets)
    tap.put("end", f'{{"{KEY}": 1}}'.encode(), [])

    assert tap.problem
    assert tap.end == b""


async def test_places_that_are_remembered_are_bounded() -> None:
    tap = Tap(Redaction(KEY))
    put(tap, KEY[:12])
    for number in range(2000):
        put(tap, "x", place=str(number))
    put(tap, KEY[12:])

    assert not tap.problem
    assert tap.taken() == b"".join([f"<{KEY[:12]}>".encode(), b"<x>" * 2000, f"<{KEY[12:]}>".encode()])

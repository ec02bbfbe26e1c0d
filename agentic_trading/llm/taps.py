"""Taps: the events of a call's answer on their way to its client, while the answer is put together for the log."""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Literal, Protocol

EventKind = Literal["event", "usage", "end", "error"]
"""The kind of an event of an answer: its last one, its usage alone, an error in place of an answer, or another one."""

Place = tuple[Any, ...]
"""The place of a text in events. Texts of one place follow each other."""

MOST_WAITING_BYTES: Final = 4 << 20
"""The size of the events that may wait for a client that reads slowly."""

_MOST_PLACES: Final = 1_024


class KnownSecrets(Protocol):
    """Secrets that no client may read."""

    @property
    def longest(self) -> int:
        """The length of the longest form of a secret."""
        ...

    def find(self, text: str) -> Literal["", "start", "whole"]:
        """Return whether a secret is in a text, or starts at its end."""
        ...


class Tap:
    """The events of one call, from the adapter that receives them to the client that waits for them.

    Putting an event never waits. If too many events wait, or if a secret is in them, the tap closes: the call goes on,
    and its client gets an error. An event that ends in the start of a secret waits for the next ones, because a secret
    may be split over several events.

    Args:
        secrets: The secrets of the platform.
        wants_usage: Whether the client reads an event that has the usage only.
        most_bytes: The size of the events that may wait.

    Attributes:
        is_begun: Whether an event has come.
        is_read: Whether an event was taken.
        problem: The reason why it was closed, or an empty text.
        end: The last event. It is kept back until the answer is on record.

    """

    def __init__(
        self, secrets: KnownSecrets, *, wants_usage: bool = True, most_bytes: int = MOST_WAITING_BYTES
    ) -> None:
        self.is_begun = False
        self.is_read = False
        self.problem = ""
        self.end = b""
        self._secrets = [secrets]
        self._wants_usage = wants_usage
        self._most_bytes = most_bytes
        self._bytes = 0
        self._waiting: deque[bytes] = deque()
        self._held: list[bytes] = []
        self._ends: dict[Place, str] = {}
        self._starting: set[Place] = set()
        self._arrived = asyncio.Event()

    def guard(self, secrets: KnownSecrets) -> None:
        """Also look for these secrets, such as the key of the provider."""
        if secrets not in self._secrets:
            self._secrets.append(secrets)

    def put(self, kind: EventKind, raw: bytes, texts: Iterable[tuple[Place, str]]) -> None:
        """Hand an event on.

        Args:
            kind: Its kind. An error is not handed on, because the call may be tried again.
            raw: Its bytes.
            texts: The texts in it, each with its place.

        """
        if kind == "error":
            return
        self.is_begun = True
        if self.problem or (kind == "usage" and not self._wants_usage):
            return
        if self._has_secret(raw, texts):
            self._close("the answer has a secret of this platform")
            return
        self._held.append(raw)
        self._bytes += len(raw)
        if kind == "end":
            self.end = b"".join(self._held)
        elif self._bytes > self._most_bytes:
            self._close(f"more than {self._most_bytes} bytes of events wait. The client reads too slowly")
        elif not self._starting:
            self._waiting.extend(self._held)
            self._held.clear()
            self._arrived.set()

    @property
    def has_events(self) -> bool:
        """Whether events wait."""
        return bool(self._waiting)

    def taken(self) -> bytes:
        """Take the events that wait. Empty without any."""
        events = b"".join(self._waiting)
        self._waiting.clear()
        self._bytes = sum(map(len, self._held))
        self._arrived.clear()
        self.is_read = self.is_read or bool(events)
        return events

    async def wait(self, call: "asyncio.Task[Any]", timeout_s: float) -> bool:
        """Wait for an event or the end of the call. Return whether there is one of them."""
        if self._waiting or call.done():
            return True
        call.add_done_callback(self._wake)
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return False
        finally:
            call.remove_done_callback(self._wake)
        return True

    def _wake(self, _: "asyncio.Task[Any]") -> None:
        self._arrived.set()

    def _close(self, problem: str) -> None:
        self.problem = problem
        self._waiting.clear()
        self._held.clear()

    def _has_secret(self, raw: bytes, texts: Iterable[tuple[Place, str]]) -> bool:
        if any(each.find(raw.decode(errors="replace")) == "whole" for each in self._secrets):
            return True
        kept = max(each.longest for each in self._secrets) - 1
        for place, text in texts:
            joined = self._ends.pop(place, "") + text
            found = {each.find(joined) for each in self._secrets}
            if "whole" in found:
                return True
            if "start" in found:
                self._starting.add(place)
            else:
                self._starting.discard(place)
            # The end of each text only, as long as a secret that is not whole yet.
            self._ends[place] = joined[-kept:] if kept > 0 else ""
            if len(self._ends) > _MOST_PLACES:
                del self._ends[next(iter(self._ends))]
        return False

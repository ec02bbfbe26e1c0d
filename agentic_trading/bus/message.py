"""What goes over the bus, and what of it reaches a reader."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """What goes over the bus. Messages of one key keep their order; header values are printable ASCII."""

    key: str
    value: bytes
    headers: Mapping[str, str]

    @property
    def head_size(self) -> int:
        """How many bytes key and headers have together."""
        key = len(self.key) if self.key.isascii() else len(self.key.encode("utf-8", "surrogatepass"))
        return key + sum(map(len, self.headers)) + sum(map(len, self.headers.values()))


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message handed to one reader of a group.

    `position` is its place in the topic, growing per key. `deliveries` counts how often the group was handed it,
    this time included: 1 on the first delivery.
    """

    topic: str
    position: int
    message: Message
    deliveries: int

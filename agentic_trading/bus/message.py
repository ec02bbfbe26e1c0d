"""What goes over the bus, and what of it reaches a reader."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """What goes over the bus. Messages of one key keep their order; header values are printable ASCII."""

    key: str
    value: bytes
    headers: Mapping[str, str]


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

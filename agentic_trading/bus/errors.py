"""Errors of the bus.

TradingError
└── BusError
    ├── BusClosedError            the broker or the subscription was closed
    ├── BusAddressError           a URL is not the URL of a bus
    ├── BusUnavailableError       the broker's servers are unreachable, or do not answer in time
    ├── BusSettingsError          the server may lose acknowledged messages, or is too old
    ├── PartitionsElsewhereError  another reader has partitions that this reader needs
    ├── BacklogFullError          a topic has as many messages as it may keep
    ├── TopicSetupError           a topic is missing, or is set up incorrectly
    ├── MessageTooLargeError      a message is larger than the broker accepts
    ├── UnreadableMessageError    a message is invalid for its topic; its sender must send another one
    ├── SignatureError            the sender of a message is not verified
    └── SigningKeyError           a signing key or its name is not valid
"""

from collections.abc import Sequence
from typing import Literal

from agentic_trading.errors import TradingError

UnreadableReason = Literal[
    "decode", "checksum", "schema_version", "must_understand", "unknown_restriction", "too_large"
]

SignatureFault = Literal["missing", "unknown_principal", "wrong"]


class BusError(TradingError):
    """A message cannot be sent, received or read."""


class BusClosedError(BusError):
    """`what` was closed and cannot be used any more."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} is closed. Open a new one.")


class PartitionsElsewhereError(BusError):
    """A reader of `topic` does not have the partitions `missing`, of `count`."""

    def __init__(self, topic: str, missing: Sequence[int], count: int) -> None:
        self.topic = topic
        self.missing = tuple(missing)
        self.count = count
        numbers = ", ".join(map(str, missing))
        super().__init__(
            f"{len(missing)} of the {count} partitions of {topic} are assigned to another reader of the group "
            f"({numbers}). Their messages were not read. Stop the other reader, then start again."
        )


class BusAddressError(BusError, ValueError):
    """`url` is not the URL of a bus. The part before an @, a name and a password, is masked."""

    def __init__(self, url: str) -> None:
        before, at, place = url.rpartition("@")
        scheme, separator, _ = before.partition("://")
        self.url = f"{scheme if separator else ''}{separator}***@{place}" if at else url
        super().__init__(
            f"The bus URL is {self.url!r:.200}. Allowed: kafka://HOST:PORT (separate several servers by commas), "
            "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix://PATH, without a query string."
        )


class BusUnavailableError(BusError):
    """The `servers` of a broker are unreachable or do not answer in time, because of `problem`.

    A message that was being published may have been stored or not. Publish it again if duplicates are
    acceptable.
    """

    def __init__(self, servers: str, problem: str) -> None:
        self.servers = servers
        self.problem = problem
        super().__init__(
            f"{problem}. Servers: {servers}. Check that they are running and reachable, then retry."
        )


class BusSettingsError(BusError, ValueError):
    """The server of a bus is unsafe: `setting` is `found`, and must be `allowed`."""

    def __init__(self, setting: str, found: str, allowed: str) -> None:
        self.setting = setting
        self.found = found
        self.allowed = allowed
        super().__init__(f"The server of the bus has {setting} = {found!r}. Allowed: {allowed}.")


class BacklogFullError(BusError):
    """A `partition` of `topic` has `size` messages, and its limit is `limit`.

    The messages were not added.
    """

    def __init__(self, topic: str, partition: int, size: int, limit: int) -> None:
        self.topic = topic
        self.partition = partition
        self.size = size
        self.limit = limit
        super().__init__(
            f"Topic {topic} has {size} messages in partition {partition}. Allowed: at most {limit}. "
            "Start the reader or the archiver of the topic (agentic-trading topics lag shows which group is behind), "
            "or destroy a group that is no longer read."
        )


class TopicSetupError(BusError, ValueError):
    """`topic` cannot be used because of `problem`. `remedy` describes the fix."""

    def __init__(self, topic: str, problem: str, remedy: str) -> None:
        self.topic = topic
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"Topic {topic} {problem}. {remedy}.")


class MessageTooLargeError(BusError, ValueError):
    """The `part` of a message for `topic` has `size` bytes, more than `allowed`."""

    def __init__(self, topic: str, size: int, allowed: int, part: str = "value") -> None:
        self.topic = topic
        self.size = size
        self.allowed = allowed
        self.part = part
        super().__init__(
            f"A message is too large for {topic}: {part} of {size} bytes. Allowed: at most {allowed} bytes."
        )


class UnreadableMessageError(BusError, ValueError):
    """A message cannot be read, or must not be processed.

    `detail` describes the place and the allowed values, without the contents. `envelope_id` and `trace_id`
    are those of the message, and empty if neither its body nor its headers have them.
    """

    def __init__(
        self, reason: UnreadableReason, detail: str, *, envelope_id: str = "", trace_id: str = ""
    ) -> None:
        self.reason = reason
        self.detail = detail
        self.envelope_id = envelope_id
        self.trace_id = trace_id
        super().__init__(f"{reason}: {detail}")


class SignatureError(BusError, ValueError):
    """The sender `principal` of a message is not verified.

    The signature is missing or wrong, or the principal is unknown.
    """

    def __init__(self, fault: SignatureFault, principal: str) -> None:
        self.fault = fault
        self.principal = principal
        said = {
            "missing": "it has no signature",
            "unknown_principal": f"no key of {principal[:128]!r} is configured here",
            "wrong": f"its signature does not match the keys of {principal[:128]!r}",
        }[fault]
        super().__init__(
            f"The sender of the message is not verified: {said}. Sign the message with the sender's key."
        )


class SigningKeyError(BusError, ValueError):
    """The key at `where` cannot be used because of `problem`. The text does not contain the key."""

    def __init__(self, where: str, problem: str, allowed: str) -> None:
        self.where = where
        self.problem = problem
        self.allowed = allowed
        super().__init__(f"{where} {problem}. Allowed: {allowed}.")

"""What can go wrong with messages.

TradingError
└── BusError
    ├── BusClosedError            the broker or the subscription was closed
    ├── BusAddressError           an address names no bus
    ├── BusUnavailableError       the broker's servers cannot be reached, or do not answer in time
    ├── BusSettingsError          the broker's server may forget what it has acknowledged, or is too old
    ├── PartitionsElsewhereError  another reader has partitions that this one needs
    ├── BacklogFullError          a topic has as many messages as it may keep
    ├── TopicSetupError           a topic is missing, or not set up as its messages need it
    ├── MessageTooLargeError      the broker does not take messages of this size
    ├── UnreadableMessageError    a message is not what its topic carries; its sender must send another
    ├── SignatureError            the sender of a message is not proved
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
    """`what` was closed; it takes and gives nothing more."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"{what} is closed; open another one")


class PartitionsElsewhereError(BusError):
    """A reader of `topic` has not been assigned the partitions `missing`, of `count`."""

    def __init__(self, topic: str, missing: Sequence[int], count: int) -> None:
        self.topic = topic
        self.missing = tuple(missing)
        self.count = count
        numbers = ", ".join(map(str, missing))
        super().__init__(
            f"{len(missing)} of the {count} partitions of {topic} are assigned to another reader of the group ({numbers}), and "
            "their messages were not read; stop the other reader, then start again"
        )


class BusAddressError(BusError, ValueError):
    """The address `url` names no bus; what stands before an @ in it, a name and a password, is not shown."""

    def __init__(self, url: str) -> None:
        before, at, place = url.rpartition("@")
        scheme, separator, _ = before.partition("://")
        self.url = f"{scheme if separator else ''}{separator}***@{place}" if at else url
        super().__init__(
            f"the bus is {self.url!r:.200}; allowed is kafka://HOST:PORT, several with commas between, "
            "redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix://PATH, without options behind a ?"
        )


class BusUnavailableError(BusError):
    """The `servers` of a broker cannot be reached, or do not answer in time, for `problem`.

    A message that was being published may be there or not: to publish it again is right where copies are.
    """

    def __init__(self, servers: str, problem: str) -> None:
        self.servers = servers
        self.problem = problem
        super().__init__(
            f"{problem}; servers: {servers}; see that they run and can be reached, then try again"
        )


class BusSettingsError(BusError, ValueError):
    """The server of a bus cannot be relied on: `setting` is `found`; `allowed` says what it must be."""

    def __init__(self, setting: str, found: str, allowed: str) -> None:
        self.setting = setting
        self.found = found
        self.allowed = allowed
        super().__init__(f"the server of the bus has {setting} = {found!r}; allowed is {allowed}")


class BacklogFullError(BusError):
    """A `partition` of `topic` keeps `size` messages, and may keep `limit`: nothing was added."""

    def __init__(self, topic: str, partition: int, size: int, limit: int) -> None:
        self.topic = topic
        self.partition = partition
        self.size = size
        self.limit = limit
        super().__init__(
            f"topic {topic} keeps {size} messages in partition {partition}, and no more than {limit} are allowed; "
            "start the reader or the archiver of the topic (agentic-trading topics lag says which group does not finish them), "
            "or destroy the group that reads no more"
        )


class TopicSetupError(BusError, ValueError):
    """`topic` cannot be used, for `problem`; `remedy` is what to do."""

    def __init__(self, topic: str, problem: str, remedy: str) -> None:
        self.topic = topic
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"topic {topic} {problem}; {remedy}")


class MessageTooLargeError(BusError, ValueError):
    """The `part` of a message for `topic` has `size` bytes, more than the `allowed` ones."""

    def __init__(self, topic: str, size: int, allowed: int, part: str = "value") -> None:
        self.topic = topic
        self.size = size
        self.allowed = allowed
        self.part = part
        super().__init__(
            f"a message whose {part} has {size} bytes is too large for {topic}; allowed are {allowed} bytes"
        )


class UnreadableMessageError(BusError, ValueError):
    """A message cannot be read, or must not be followed.

    `detail` says where and what is allowed, without the contents. The ids are the message's; each is empty where
    neither body nor headers have it.
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
    """It is not proved that `principal` sent a message: the signature is missing or wrong, or the principal unknown."""

    def __init__(self, fault: SignatureFault, principal: str) -> None:
        self.fault = fault
        self.principal = principal
        said = {
            "missing": "it has no signature",
            "unknown_principal": f"{principal[:128]!r} is no principal with a key here",
            "wrong": f"it is not as {principal[:128]!r} signed it",
        }[fault]
        super().__init__(
            f"the sender of the message is not proved: {said}; allowed are messages that are signed as a whole"
        )


class SigningKeyError(BusError, ValueError):
    """The key at `where` cannot be used, for `problem`; it is not shown."""

    def __init__(self, where: str, problem: str, allowed: str) -> None:
        self.where = where
        self.problem = problem
        self.allowed = allowed
        super().__init__(f"{where} {problem}; allowed: {allowed}")

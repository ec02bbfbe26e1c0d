"""The port that gives an envelope one owner at a time, and that keeps what its attempts gave for the next owner."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from agentic_trading.llm.errors import LLMError

MOST_CLAIMS: Final = 4
"""How often an envelope is claimed without any progress before it counts as what kills its workers."""

Spell = Callable[[], bytes]
"""What is to be kept, spelled when it is needed: a store within the process may never need it."""


class ClaimKey(NamedTuple):
    """An envelope; two tenants may use the same id."""

    tenant: str
    envelope_id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run an envelope, and what owners before have left of its attempts, by number.

    `token` grows with each claim of the same key: an older one is stale. `count` is how often it was claimed since an
    attempt was kept last, this time included. `intended` are the attempts that were about to be sent, each with the
    facts of its dispatch; `kept` is what attempts gave, not read yet.
    """

    key: ClaimKey
    token: int
    count: int = 1
    intended: Mapping[int, bytes] = field(default_factory=dict)
    kept: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Busy:
    """Another owner runs it, and lives."""


@dataclass(frozen=True, slots=True)
class Finished:
    """It has been run and must not be run again; `last` is its last attempt, empty where that is not kept any more."""

    last: bytes = b""


@dataclass(frozen=True, slots=True)
class OtherContent:
    """The key was claimed with other content: two envelopes have one id."""


class ClaimLostError(LLMError):
    """Another owner has the envelope now: nothing of this run may be sent, settled or answered any more."""

    def __init__(self, key: ClaimKey) -> None:
        self.key = key
        super().__init__(f"the claim of envelope {key.envelope_id} was lost; another worker has it")


class ClaimStoreUnavailableError(LLMError):
    """The claims cannot be reached; it is not known whether the step was taken, and taking it again is harmless."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the claims cannot be reached: {why}")


class ClaimStore(Protocol):
    """One living owner an envelope; a finished one stays finished.

    The owner is the process that has called `begin`. Every step but `claim` is fenced: with a claim that was taken over
    it changes nothing and raises `ClaimLostError`. Every step may raise `ClaimStoreUnavailableError`.
    """

    async def begin(self) -> None:
        """Make this process a living owner; what an earlier process of its name holds is free."""
        ...

    def holds(self, claim: Claim) -> bool:
        """Whether this process has surely counted as living since it took `claim`; to be asked before each send, without waiting."""
        ...

    async def claim(self, key: ClaimKey, content: str) -> Claim | Busy | Finished | OtherContent:
        """Take `key`, unless it is finished or its owner lives; `content` is the hash of what is run under it.

        A claim of this process whose answer was lost on the way back is given again.
        """
        ...

    async def until_free(self, key: ClaimKey) -> None:
        """Wait until `key` may be free; another owner may still claim it first. A cancelled wait changes nothing."""
        ...

    async def intend(self, claim: Claim, attempt: int, facts: bytes) -> None:
        """Note that `attempt` is about to be sent; empty facts: that it is not, after all."""
        ...

    async def keep(self, claim: Claim, attempt: int, spell: Spell) -> None:
        """Keep what `attempt` gave, before it is read; claims are then counted from 0 again."""
        ...

    async def finish(self, claim: Claim, spell: Spell) -> None:
        """Say that the envelope is done for good, with its last attempt, which is kept for a while."""
        ...

    async def release(self, claim: Claim) -> None:
        """Let another owner take it as it stands; this claim is not counted. A stale one changes nothing."""
        ...

    async def aclose(self) -> None:
        """End this process as an owner: what it holds is free. Harmless twice."""
        ...

"""The port that gives an envelope one owner at a time, and that keeps what its attempts gave for the next owner."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, Self

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
    """It has been run and must not be run again; `attempts` are its attempts, a line each, empty where they are not kept any more."""

    attempts: bytes = b""


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


class ClaimsRolledBackError(ClaimStoreUnavailableError):
    """The claims of `tenant` have forgotten steps that were acknowledged, or their ledger has: `found` comes before `known`."""

    def __init__(self, tenant: str, known: str, found: str) -> None:
        self.tenant = tenant
        self.known = known
        self.found = found
        LLMError.__init__(
            self,
            f"the claims of {tenant!r} are closed: they had come to {known}, now they are at {found}; nothing may run "
            "until `agentic-trading budget rebuild` has booked the logs again",
        )


class NameTakenError(ClaimStoreUnavailableError):
    """Another living worker has this worker's `name`: one on `holder`, with another log than this one on `host`."""

    def __init__(self, name: str, holder: str, host: str, *, lease_s: float) -> None:
        self.name = name
        self.holder = holder
        self.host = host
        LLMError.__init__(
            self,
            f"the name {name!r} is that of a worker on {holder} with another log, and this one is on {host}; allowed is "
            f"another name for one of the two; if that one has ended, the name is free within {lease_s:g} s",
        )


ClaimState = Literal["claimed", "intended", "kept"]
"""How far an envelope has come that is not finished: nothing sent, an attempt that may have been sent, all answers kept."""


@dataclass(frozen=True, slots=True)
class AbandonedClaim:
    """An envelope that is not finished, and that no living owner runs: it goes on when it is delivered again."""

    key: ClaimKey
    state: ClaimState

    @classmethod
    def of(cls, key: ClaimKey, intended: Collection[int], kept: Collection[int]) -> Self:
        """Return one of which these attempts were about to be sent, and these gave something."""
        is_open = bool(set(intended) - set(kept))
        return cls(key, "intended" if is_open else "kept" if kept else "claimed")


class ClaimStore(Protocol):
    """One living owner an envelope; a finished one stays finished. Of an answer that is frozen the first one is kept.

    The owner is the process that has called `begin`. Every step but `claim` is fenced: with a claim that was taken over
    it changes nothing and raises `ClaimLostError`. Every step may raise `ClaimStoreUnavailableError`, and where claims
    that were acknowledged are forgotten `ClaimsRolledBackError`: nothing is then claimed until an operator acts.
    """

    async def begin(self) -> None:
        """Make this process a living owner; what an earlier process of its name and log holds is free.

        Raises `NameTakenError` while another process of its name lives that has another log.
        """
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
        """Say that the envelope is done for good, with its attempts, which are kept for a while."""
        ...

    async def release(self, claim: Claim) -> None:
        """Let another owner take it as it stands; this claim is not counted. A stale one changes nothing."""
        ...

    async def freeze(self, key: ClaimKey, answer: bytes, keep_s: float) -> bytes:
        """Keep an answer for so long, unless one is kept under this key; return the one that is kept then."""
        ...

    async def frozen(self, key: ClaimKey) -> bytes:
        """Return the answer that is kept under this key, empty where there is none."""
        ...

    async def left(self, tenant: str) -> Sequence[AbandonedClaim]:
        """Return what is not finished and no living owner has run for a while, oldest first."""
        ...

    async def aclose(self) -> None:
        """End this process as an owner: what it holds is free. Harmless twice."""
        ...

"""The claim store interface. A claim gives an envelope one owner at a time."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, Protocol, Self

from agentic_trading.llm.errors import LLMError

MOST_CLAIMS: Final = 4
"""The number of claims without progress after which an envelope counts as the cause of worker crashes."""

Spell = Callable[[], bytes]
"""Serializes a value when it is needed. A store within the process may never need it."""


class ClaimKey(NamedTuple):
    """The key of an envelope. Two tenants may use the same id."""

    tenant: str
    envelope_id: str


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run an envelope, with the attempts of earlier owners by number.

    `token` grows with each claim of the same key, so that older claims are stale. `count` is the number of
    claims since an outcome was last stored, including this one. `intended` contains the attempts that were
    about to be sent, with the facts of their dispatch. `kept` contains outcomes of attempts, not parsed yet.
    """

    key: ClaimKey
    token: int
    count: int = 1
    intended: Mapping[int, bytes] = field(default_factory=dict)
    kept: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Busy:
    """A living owner runs the envelope."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The envelope was run and must not be run again.

    `attempts` are its attempts, one on each line. They are empty if they are no longer stored.
    """

    attempts: bytes = b""


@dataclass(frozen=True, slots=True)
class OtherContent:
    """The key was claimed with other content, because two envelopes have the same id."""


class ClaimLostError(LLMError):
    """Another owner has the envelope. This run must not send, settle or answer anything more."""

    def __init__(self, key: ClaimKey) -> None:
        self.key = key
        super().__init__(f"The claim of envelope {key.envelope_id} was lost: another worker has it.")


class ClaimStoreUnavailableError(LLMError):
    """The claim store is unreachable.

    The step may have been done or not, and repeating it is harmless.
    """

    def __init__(self, why: str) -> None:
        super().__init__(f"The claim store is unreachable: {why}")


class ClaimsRolledBackError(ClaimStoreUnavailableError):
    """The claims or the ledger of `tenant` have lost acknowledged steps: `found` comes before `known`."""

    def __init__(self, tenant: str, known: str, found: str) -> None:
        self.tenant = tenant
        self.known = known
        self.found = found
        LLMError.__init__(
            self,
            f"The claims of {tenant!r} are closed: their server was at {known}, and is now at {found}. "
            "Run `agentic-trading budget rebuild` to book the logs again. No call runs until then.",
        )


class NameTakenError(ClaimStoreUnavailableError):
    """Another living worker, on the host `holder`, uses this worker's `name` with another log.

    This worker is on `host`.
    """

    def __init__(self, name: str, holder: str, host: str, *, lease_s: float) -> None:
        self.name = name
        self.holder = holder
        self.host = host
        LLMError.__init__(
            self,
            f"The name {name!r} is in use by a worker on {holder} with another log. This worker is on {host}. Choose "
            f"another name for one of the two. If the other worker has ended, the name is free within {lease_s:g} s.",
        )


ClaimState = Literal["claimed", "intended", "kept"]
"""The state of an unfinished envelope: nothing was sent, an attempt may have been sent, or all outcomes are
stored."""


@dataclass(frozen=True, slots=True)
class AbandonedClaim:
    """An unfinished envelope without a living owner. It continues when it is delivered again."""

    key: ClaimKey
    state: ClaimState

    @classmethod
    def of(cls, key: ClaimKey, intended: Collection[int], kept: Collection[int]) -> Self:
        """Return the claim, given the attempts that were about to be sent, and those with an outcome."""
        is_open = bool(set(intended) - set(kept))
        return cls(key, "intended" if is_open else "kept" if kept else "claimed")


class ClaimStore(Protocol):
    """The interface of a claim store.

    An envelope has one living owner, and a finished envelope stays finished. The owner is the process that
    has called `begin`. Every step except `claim` is fenced: after the claim was taken over, the step has no
    effect and raises `ClaimLostError`. Every step may raise `ClaimStoreUnavailableError`. If acknowledged
    claims were lost, it raises `ClaimsRolledBackError`, and no envelope can be claimed until an operator
    acts. Of several frozen answers of a key, the first is kept.
    """

    async def begin(self) -> None:
        """Register this process as a living owner.

        Claims of an earlier process with its name and log become free.

        Raises:
            NameTakenError: If a living process with its name has another log.

        """
        ...

    def holds(self, claim: Claim) -> bool:
        """Return whether this process was surely living at all times since it took `claim`.

        Check this before each send. This does not wait.
        """
        ...

    async def claim(self, key: ClaimKey, content: str) -> Claim | Busy | Finished | OtherContent:
        """Take `key`, unless it is finished or its owner is living.

        `content` is the hash of the envelope. If the answer to an earlier claim of this process was lost, the
        same claim is returned again.
        """
        ...

    async def until_free(self, key: ClaimKey) -> None:
        """Wait until `key` may be free. Another owner may still claim it first.

        A cancelled wait has no effect.
        """
        ...

    async def intend(self, claim: Claim, attempt: int, facts: bytes) -> None:
        """Store that `attempt` is about to be sent.

        Empty `facts` mean that it is not sent after all.
        """
        ...

    async def keep(self, claim: Claim, attempt: int, spell: Spell) -> None:
        """Store the outcome of `attempt` before it is parsed. The count of claims restarts at 0."""
        ...

    async def finish(self, claim: Claim, spell: Spell) -> None:
        """Mark the envelope as finished for good, and keep its attempts for a while."""
        ...

    async def release(self, claim: Claim) -> None:
        """Free the claim for another owner in its current state. It no longer counts.

        A stale claim has no effect.
        """
        ...

    async def freeze(self, key: ClaimKey, answer: bytes, keep_s: float) -> bytes:
        """Keep an answer for `keep_s` seconds, unless the key has one.

        Return the answer that is kept.
        """
        ...

    async def frozen(self, key: ClaimKey) -> bytes:
        """Return the answer that is kept under this key, or empty bytes."""
        ...

    async def left(self, tenant: str) -> Sequence[AbandonedClaim]:
        """Return unfinished envelopes that no living owner has run for a while, oldest first."""
        ...

    async def aclose(self) -> None:
        """Unregister this process, so that its claims are free. Repeated calls have no effect."""
        ...

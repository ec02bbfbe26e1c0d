"""The port that gives an envelope one owner at a time."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run an envelope. `token` grows with each claim of the same key: an older one is stale."""

    key: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else runs it."""

    owner: str


@dataclass(frozen=True, slots=True)
class Finished:
    """It has been run; it must not be run again."""


class ClaimStore(Protocol):
    """Give each envelope to one owner at a time; a finished envelope stays finished."""

    async def claim(self, key: str, owner: str) -> Claim | Busy | Finished:
        """Take `key` for `owner`, unless somebody holds it or it is finished. Claims are counted when taken."""
        ...

    async def finish(self, claim: Claim) -> None:
        """Say that the envelope is done for good; a stale claim changes nothing."""
        ...

    async def give_up(self, claim: Claim) -> None:
        """Let somebody else take it; a stale claim changes nothing."""
        ...

"""The port that gives an envelope one owner at a time."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run an envelope. `token` grows with each claim of the same key: an older one is stale."""

    key: str
    owner: str
    token: int
    content: str = ""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another owner runs it; `content` is what it was claimed with."""

    owner: str
    content: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """It has been run, with `content`; it must not be run again."""

    content: str = ""


class ClaimStore(Protocol):
    """Give each envelope to one owner at a time; a finished envelope stays finished."""

    async def claim(self, key: str, owner: str, content: str = "") -> Claim | Busy | Finished:
        """Take `key` for `owner`, unless it is held or finished. Claims are counted when taken.

        `content` names what is run under the key: a claim with other content shows by it.
        """
        ...

    async def until_free(self, key: str) -> None:
        """Wait until `key` is free; another owner may still claim it first. A cancelled wait changes nothing."""
        ...

    async def finish(self, claim: Claim) -> None:
        """Say that the envelope is done for good; a stale claim changes nothing."""
        ...

    async def give_up(self, claim: Claim) -> None:
        """Let another owner take it; a stale claim changes nothing."""
        ...

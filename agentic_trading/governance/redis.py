"""The state that is kept on a Redis: its keys, and how far a tenant's has come.

Each step of a tenant's ledger and of its claims advances one sequence. A server that was set back, to an older file or to
nothing, is behind what a process has seen of it. The first step that finds this closes ledger and claims of the tenant for
all processes, until a rebuild begins the next epoch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

from agentic_trading.governance.ledger import LedgerCheckpoint
from agentic_trading.governance.limiter import Deployment

REBUILDING: Final = b"a log that is being booked again"  # as in sequence.lua
"""What a state is closed by that has lost nothing."""


def tag(namespace: str, tenant: str) -> str:
    """Return what all keys of a tenant begin with: `agentic:{acme}`, the braces being the cluster's hash tag.

    Raises `ValueError` for a namespace that holds a brace: it would be the tag.
    """
    name = tenant.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return _tagged(namespace, name or "%")


def limiter_keys(namespace: str, deployment: Deployment) -> list[str]:
    """Return the keys of a deployment in the order of the limiter's scripts; raises as `tag` does."""
    prefix = _tagged(namespace, f"{deployment.provider}/{quote(deployment.model, safe='')}")
    return [f"{prefix}:{name}" for name in ("lane", "inside", "permits", "line", "places")]


def _tagged(namespace: str, name: str) -> str:
    if not namespace or "{" in namespace or "}" in namespace:
        raise ValueError(f"namespace {namespace!r} cannot begin a key; allowed is text without braces")
    return f"{namespace}:{{{name}}}"


@dataclass(frozen=True, slots=True)
class LedgerKeys:
    """The keys of one tenant's ledger; `shared` are those that every script declares, in the scripts' order."""

    shared: tuple[str, ...]
    meta: str
    queue: str
    counters: str
    index: str
    calls: str

    @classmethod
    def of(cls, namespace: str, tenant: str) -> Self:
        """Name them."""
        prefix = f"{tag(namespace, tenant)}:ledger"
        names = (
            "meta",
            "limits",
            "counters",
            "ends",
            "leases",
            "line",
            "waiters",
            "index",
            "ended",
            "expired",
        )
        return cls(
            shared=tuple(f"{prefix}:{name}" for name in names),
            meta=f"{prefix}:meta",
            queue=f"{prefix}:line",
            counters=f"{prefix}:counters",
            index=f"{prefix}:index",
            calls=f"{prefix}:call:",
        )

    def with_calls(self, reservation_ids: Iterable[str]) -> tuple[str, ...]:
        """Return the shared keys, and those of these attempts."""
        return (*self.shared, *(self.calls + id_ for id_ in reservation_ids))


def sequence_script() -> str:
    """Return what each script begins with that takes a step; reads a file."""
    return (files(__package__) / "sequence.lua").read_text("utf-8")


class ScriptReply(NamedTuple):
    """One answer: a word, where the state is now, its server's time in ms, what it is closed by, and the rest.

    `own` is the sequence of the last step that this process took.
    """

    word: bytes
    epoch: int
    epoch_id: bytes
    sequence: int
    own: int
    now_ms: int
    closed: bytes
    rest: Sequence[Any]

    @property
    def checkpoint(self) -> LedgerCheckpoint:
        """How far the state has come."""
        return LedgerCheckpoint(self.epoch, self.epoch_id.decode(), self.sequence)


class SeenSequence:
    """What a process has seen of one tenant's sequence: the server must not be behind it at the next step."""

    def __init__(self) -> None:
        self.known = LedgerCheckpoint(0, "", 0)
        self.own = 0

    @property
    def known_facts(self) -> tuple[int, str, int, int]:
        """The first arguments of every script: the checkpoint that is known, and the sequence of our last step."""
        return self.known.epoch, self.known.epoch_id, self.known.sequence, self.own

    def read(self, raw: Sequence[Any]) -> ScriptReply:
        """Return an answer as the scripts give it, and take note of it; it may come in another order than its step was taken."""
        word, epoch, epoch_id, sequence, own, now_ms, closed = raw[0].split(b" ", 6)
        numbers = int(sequence), int(own), int(now_ms)
        reply = ScriptReply(word, int(epoch), epoch_id, *numbers, closed, raw[1:])
        self._saw(reply)
        return reply

    def _saw(self, reply: ScriptReply) -> None:
        known, epoch = self.known, reply.epoch
        if epoch > known.epoch:
            self.known, self.own = reply.checkpoint, reply.own
        elif epoch == known.epoch and not self._is_behind(reply):
            self.own = max(self.own, reply.own)
            if reply.sequence > known.sequence:
                self.known = reply.checkpoint

    def _is_behind(self, reply: ScriptReply) -> bool:
        """Whether an answer comes from a server that has lost what another one knew."""
        known = self.known
        return reply.epoch < known.epoch or (
            reply.epoch == known.epoch and reply.epoch_id.decode() != known.epoch_id
        )

    def require_at_least(self, checkpoint: LedgerCheckpoint) -> None:
        """Take note of how far the state had come in another process, if that is not what is known, or before it."""
        known = self.known
        if checkpoint.epoch > known.epoch or (
            checkpoint.epoch == known.epoch
            and (checkpoint.epoch_id != known.epoch_id or checkpoint.sequence > known.sequence)
        ):
            if (checkpoint.epoch, checkpoint.epoch_id) != (known.epoch, known.epoch_id):
                self.own = 0
            self.known = checkpoint

"""The keys under which governance keeps its state on a Redis."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote

from agentic_trading.governance.limiter import Deployment


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

"""The platform's policy: who may do what, and at what most; an envelope only asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from agentic_trading.governance.controls_document import PLATFORM
from agentic_trading.governance.limit import ANY, Limit, ScopeKind
from agentic_trading.governance.limiter import Deployment, RateLimits
from agentic_trading.governance.policy_file import Highest, Principal, read_policy
from agentic_trading.governance.scopes import agent_of
from agentic_trading.governance.windows import Window
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.failure import FailureKind, FailureReason


@dataclass(frozen=True, slots=True)
class _Rights:
    """What a principal may do, and the ceilings that its calls get beside their own."""

    may: Principal
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """Who may do what. Without principals everybody may do everything.

    `rates` are what each model takes from all together; `keys` are the names of the keys that principals sign with.
    """

    principals: Mapping[str, Principal] | None = None
    rates: Mapping[Deployment, RateLimits] = field(default_factory=dict)
    _rights: Mapping[str, _Rights] = field(init=False)

    def __post_init__(self) -> None:
        """Work out once what each call is held against."""
        rights = {name: _Rights(may, _limits(may.highest)) for name, may in (self.principals or {}).items()}
        object.__setattr__(self, "_rights", rights)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the policy at `path`; raises `PolicyError`, which names table and key, for the first mistake in it."""
        file = read_policy(path)
        rates = {
            Deployment(row.provider, row.model): RateLimits(
                row.requests_per_minute, row.tokens_per_minute, row.concurrent
            )
            for row in file.rates
        }
        return cls(file.principals, rates)

    @property
    def keys(self) -> Mapping[str, str]:
        """The name of the key that each principal signs with."""
        return {name: may.key or name for name, may in (self.principals or {}).items()}

    def problem(self, principal: str, envelope: LLMEnvelope, *, max_tokens: int = 0) -> FailureReason | None:
        """Return why `principal` may not have this envelope run, or None.

        `max_tokens` is the cap of an attempt, where that may be higher than the envelope's own.
        """
        if envelope.tenant_id == PLATFORM:
            return _refused(f"tenant {PLATFORM!r} is the platform itself; allowed are tenants of other names")
        if self.principals is None:
            return None
        rights = self._rights.get(principal)
        if rights is None:
            return _refused(
                f"principal {principal!r:.200} is unknown; allowed are those that the policy names"
            )
        problem = _reach_problem(rights.may, envelope) or _size_problem(rights.may, envelope, max_tokens)
        return _refused(f"principal {principal!r} may not use {problem}") if problem else None

    def tenant_problem(self, principal: str, tenant_id: str) -> FailureReason | None:
        """Return why `principal` may send nothing for this tenant, or None."""
        if self.principals is None:
            return None
        rights = self._rights.get(principal)
        if rights is None:
            return _refused(
                f"principal {principal!r:.200} is unknown; allowed are those that the policy names"
            )
        if not any(fnmatchcase(tenant_id, pattern) for pattern in rights.may.tenants):
            allowed = ", ".join(rights.may.tenants)
            return _refused(
                f"principal {principal!r} may not use tenant {tenant_id!r:.200}; allowed: {allowed}"
            )
        return None

    def limits(self, principal: str) -> tuple[Limit, ...]:
        """Return the ceilings of each of a principal's calls, traces and agents, beside those of the envelope.

        Raises `KeyError` for one whom `problem` refuses as unknown.
        """
        return () if self.principals is None else self._rights[principal].limits


def _reach_problem(may: Principal, envelope: LLMEnvelope) -> str:
    """Return what the envelope is about that the principal has no part in; empty if nothing is."""
    reaches = (
        ("tenant", envelope.tenant_id, may.tenants),
        ("agent", agent_of(envelope), may.agents),
        ("workflow", str(envelope.workflow), may.workflows),
        ("model", f"{envelope.provider}/{envelope.model}", may.models),
    )
    for what, asked, patterns in reaches:
        if not any(fnmatchcase(asked, pattern) for pattern in patterns):
            return f"{what} {asked!r:.200}; allowed: {', '.join(patterns)}"
    return ""


def _size_problem(may: Principal, envelope: LLMEnvelope, max_tokens: int) -> str:
    """Return which tool, or how many output tokens, are more than the principal may use; empty if none are."""
    for tool in envelope.tools_allowed:
        if tool not in may.tools:
            return f"tool {tool!r:.200}; allowed: {', '.join(may.tools) or 'none'}"
    most = may.highest.output_tokens
    asked = max(max_tokens, envelope.budget.max_output_tokens + envelope.budget.thinking_budget)
    if most is not None and asked > most:
        return f"{asked} output tokens, thinking included; allowed: {most}"
    return ""


def _limits(highest: Highest) -> tuple[Limit, ...]:
    limits = []
    if highest.nusd_per_call is not None:
        limits.append(Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=highest.nusd_per_call))
    if highest.nusd_per_trace is not None:
        limits.append(Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=highest.nusd_per_trace))
    if highest.nusd_per_agent_day is not None or highest.calls_per_agent_day is not None:
        limits.append(
            Limit(
                ScopeKind.AGENT,
                ANY,
                Window.DAY,
                nusd=highest.nusd_per_agent_day,
                calls=highest.calls_per_agent_day,
            )
        )
    return tuple(limits)


def _refused(description: str) -> FailureReason:
    return FailureReason(category=FailureKind.NOT_ALLOWED, description=description)

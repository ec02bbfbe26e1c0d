"""The platform's policy: what each principal may do, and at what most; an envelope only asks."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Self

from agentic_trading.governance.limiter import Deployment, RateLimits
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window, agent_of
from agentic_trading.governance.policy_file import Highest, Principal, read_policy
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.event import PLATFORM


@dataclass(frozen=True, slots=True)
class _Rights:
    """What a principal may do, and the ceilings that its calls get besides their own."""

    may: Principal
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """What each principal may do. Without principals every sender may do everything.

    `rates` are what each model takes from all together; `keys` are the names of the keys of principals. `source` is the
    file, which refusals name.
    """

    principals: Mapping[str, Principal] | None = None
    rates: Mapping[Deployment, RateLimits] = field(default_factory=dict)
    source: str = "the policy"
    _rights: Mapping[str, _Rights] = field(init=False)

    def __post_init__(self) -> None:
        """Work out once what each call is held against."""
        rights = {
            name: _Rights(may, tuple(_limits(may.highest, name, self.source)))
            for name, may in (self.principals or {}).items()
        }
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
        return cls(file.principals, rates, path.name)

    @property
    def keys(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the keys of each principal: it signs with the first, and each is valid."""
        return {name: may.key or (name,) for name, may in (self.principals or {}).items()}

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
            return self._unknown(principal)
        problem = _reach_problem(rights.may, envelope) or _size_problem(rights.may, envelope, max_tokens)
        return self._not_allowed(principal, *problem) if problem else None

    def tenant_problem(self, principal: str, tenant_id: str) -> FailureReason | None:
        """Return why `principal` may send nothing for this tenant, or None."""
        if self.principals is None:
            return None
        rights = self._rights.get(principal)
        if rights is None:
            return self._unknown(principal)
        if not any(fnmatchcase(tenant_id, pattern) for pattern in rights.may.tenants):
            return self._not_allowed(principal, "tenants", f"tenant {tenant_id!r:.200}", rights.may.tenants)
        return None

    def _unknown(self, principal: str) -> FailureReason:
        return _refused(
            f"principal {principal!r:.200} is unknown; allowed are those with a table [principals.NAME] in {self.source}"
        )

    def _not_allowed(self, principal: str, key: str, what: str, allowed: Iterable[object]) -> FailureReason:
        """Return that a rule does not allow something: the rule, what it allows, and where it is changed."""
        stands = ", ".join(map(str, allowed)) or "none"
        return _refused(
            f"principal {principal!r} may not use {what}; allowed: {stands} (principals.{principal}.{key} in {self.source})"
        )

    def limits(self, principal: str) -> tuple[Limit, ...]:
        """Return the ceilings of each of a principal's calls, traces and agents, besides those of the envelope.

        Raises `KeyError` for one that `problem` refuses as unknown.
        """
        return () if self.principals is None else self._rights[principal].limits


_Problem = tuple[str, str, Iterable[object]]
"""The key of the rule, what it does not allow, and what it does."""


def _reach_problem(may: Principal, envelope: LLMEnvelope) -> _Problem | None:
    """Return what the envelope is about that the principal has no part in, or None."""
    reaches = (
        ("tenant", envelope.tenant_id, may.tenants),
        ("agent", agent_of(envelope), may.agents),
        ("workflow", str(envelope.workflow), may.workflows),
        ("model", f"{envelope.provider}/{envelope.model}", may.models),
    )
    for what, asked, patterns in reaches:
        if not any(fnmatchcase(asked, pattern) for pattern in patterns):
            return f"{what}s", f"{what} {asked!r:.200}", patterns
    return None


def _size_problem(may: Principal, envelope: LLMEnvelope, max_tokens: int) -> _Problem | None:
    """Return which tool is none of the principal's, or what is asked for beyond its highest, or None."""
    for tool in envelope.tools_allowed:
        if tool not in may.tools:
            return "tools", f"tool {tool!r:.200}", may.tools
    highest = may.highest
    tokens = max(max_tokens, envelope.budget.max_output_tokens + envelope.budget.thinking_budget)
    time_limit = envelope.retry_policy.attempt_timeout_s
    sizes: tuple[tuple[str, float, float | None, str], ...] = (
        ("output_tokens", tokens, highest.output_tokens, f"{tokens} output tokens, thinking included"),
        ("priority", envelope.priority, highest.priority, f"priority {envelope.priority}"),
        ("attempt_timeout_s", time_limit, highest.attempt_timeout_s, f"{time_limit:g} s for an attempt"),
    )
    for key, asked, most, text in sizes:
        if most is not None and asked > most:
            return f"highest.{key}", text, (f"at most {most:g}",)
    return None


def _limits(highest: Highest, principal: str, source: str) -> Iterator[Limit]:
    """Yield the ceilings of each call, each with its rule."""

    def rule(key: str) -> str:
        return f"principals.{principal}.highest.{key} in {source}"

    per_call, per_trace, per_day = highest.nusd_per_call, highest.nusd_per_trace, highest.nusd_per_agent_day
    if per_call is not None:
        yield Limit(ScopeKind.CALL, ANY, Window.NONE, nusd=per_call, rule=rule("usd_per_call"))
    if per_trace is not None:
        yield Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=per_trace, rule=rule("usd_per_trace"))
    if per_day is not None:
        yield Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=per_day, rule=rule("usd_per_agent_day"))
    if highest.nusd_per_day is not None:
        yield Limit(ScopeKind.PRINCIPAL, ANY, Window.DAY, nusd=highest.nusd_per_day, rule=rule("usd_per_day"))
    if highest.calls_per_agent_day is not None:
        calls = highest.calls_per_agent_day
        yield Limit(ScopeKind.AGENT, ANY, Window.DAY, calls=calls, rule=rule("calls_per_agent_day"))


def _refused(description: str) -> FailureReason:
    return FailureReason(category=FailureKind.NOT_ALLOWED, description=description)

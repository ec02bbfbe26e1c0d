"""Limits are merged unit by unit: the lower of two, the named before everyone's."""

from agentic_trading.governance.ledgers.counters import LimitSet
from agentic_trading.governance.limits import ANY, Ceiling, Limit, ScopeKind, Window


def test_lower_of_two_limits_wins() -> None:
    rules = LimitSet([
        Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=10, calls=3),
        Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=20, calls=2, tokens=5),
    ])

    assert rules.of(ScopeKind.AGENT, "one") == {Window.DAY: Ceiling(10, 5, 2)}


def test_named_limit_overrides_wildcard_per_unit() -> None:
    rules = LimitSet(
        [
            Limit(ScopeKind.AGENT, "big", Window.DAY, nusd=100),
            Limit(ScopeKind.AGENT, ANY, Window.DAY, nusd=10, calls=3),
            Limit(ScopeKind.AGENT, ANY, Window.HOUR, calls=1),
        ],
        counted=[(ScopeKind.AGENT, Window.MONTH)],
    )

    assert rules.of(ScopeKind.AGENT, "big") == {
        Window.DAY: Ceiling(nusd=100, calls=3),
        Window.HOUR: Ceiling(calls=1),
        Window.MONTH: Ceiling(),
    }
    assert rules.of(ScopeKind.AGENT, "small")[Window.DAY] == Ceiling(nusd=10, calls=3)
    assert rules.of(ScopeKind.TENANT, "acme") == {}


def test_cap_holds_ceiling_as_numbers() -> None:
    rules = LimitSet([Limit(ScopeKind.TRACE, ANY, Window.NONE, nusd=7, calls=0)])

    cap, named = rules.caps(ScopeKind.TRACE, Window.NONE)

    assert cap is not None
    assert named == {}
    assert cap.ceiling == Ceiling(nusd=7, calls=0)
    assert (cap.nusd, cap.calls) == (7, 0)
    assert cap.tokens > 10**30

"""Keys of one tenant share a slot, and no other tenant's."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic_trading.governance.control_stores.redis import RedisControlStore, RedisStatusFeed
from agentic_trading.governance.limiter import Deployment
from agentic_trading.governance.redis import LedgerKeys, limiter_keys, tag
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.interaction import reservation_id

URL = "redis://127.0.0.1:1/0"
NAMESPACES = ("agentic", "agentic:ledger", "a", "a:", "a%7B", "a:*", "a/b")
ROOMS = [
    (RedisControlStore(URL, namespace=one), RedisStatusFeed(URL, namespace=one), one) for one in NAMESPACES
]
# What means something in a key, in a pattern, or as another key's part.
names = st.lists(
    st.sampled_from([
        *"{}:%*?[]\\\n/ a",
        "ledger",
        "meta",
        "call",
        "controls",
        "statuses",
        "line",
        "local",
        "%7D",
    ]),
    max_size=5,
).map("".join)


def test_tenant_is_a_hash_tag() -> None:
    assert tag("agentic", "acme") == "agentic:{acme}"


def test_tenant_tags_are_unique() -> None:
    names = ["", "%", "%25", "{", "}", "{}", "a}b", "a{b", "%7B", "acme"]

    tags = [tag("agentic", name) for name in names]

    assert len(set(tags)) == len(names)
    assert all(one.count("{") == one.count("}") == 1 and "{}" not in one for one in tags)


def test_invalid_namespace_is_rejected() -> None:
    for namespace in ("", "a{b", "a}b"):
        with pytest.raises(ValueError, match="non-empty text without braces"):
            tag(namespace, "acme")


def test_ledger_keys_carry_tenant_tag() -> None:
    keys = LedgerKeys.of("agentic", "acme")

    for key in (*keys.shared, keys.queue, keys.counters, *keys.with_calls(["acme:key:1"])):
        assert key.startswith("agentic:{acme}:ledger:")
    assert len(set(keys.shared)) == len(keys.shared)


def keys_of(tenant: str, key: str, model: str) -> list[str]:
    """Return every key of a tenant, of one of its calls and of a model, in each namespace."""
    found: list[str] = []
    for controls, statuses, namespace in ROOMS:
        found.append(statuses._index)
        calls = [reservation_id(tenant, key, attempt) for attempt in (1, 2)]
        found += LedgerKeys.of(namespace, tenant).with_calls(calls)
        found += [
            controls._key(tenant),
            *statuses._keys(tenant),
            *limiter_keys(namespace, Deployment(LLMProvider.LOCAL, model)),
        ]
    return found


@given(first=st.tuples(names, names, names), second=st.tuples(names, names, names))
@example(first=("local/a", "a", "a"), second=("local%2Fa", "a:1", "a:ledger"))
def test_caller_names_never_collide_in_keys(
    first: tuple[str, str, str], second: tuple[str, str, str]
) -> None:
    """Whatever tenants, calls and models are called, in whatever namespaces on one server."""
    one, other = keys_of(*first), keys_of(*second)

    assert len(set(one)) == len(one)
    shared = set(one) & set(other)
    of_tenant, of_model = first[0] == second[0], first[2] == second[2]
    of_call = of_tenant and first[1] == second[1]
    expected = len(ROOMS) * (1 + of_tenant * (10 + 1 + 2) + of_call * 2 + of_model * 5)
    assert len(shared) == expected


@given(tenant=names, key=names)
def test_keys_start_with_namespace_and_brace(tenant: str, key: str) -> None:
    """So that what begins so can be left to it, by other programs and by access lists."""
    for number, namespace in enumerate(NAMESPACES):
        ours = keys_of(tenant, key, "m")
        each = len(ours) // len(NAMESPACES)
        assert all(one.startswith(f"{namespace}:{{") for one in ours[number * each : (number + 1) * each])

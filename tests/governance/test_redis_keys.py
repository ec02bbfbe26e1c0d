"""Keys of one tenant share a slot, and no other tenant's."""

import pytest

from agentic_trading.governance.redis import LedgerKeys, tag


def test_a_tenant_is_its_own_hash_tag() -> None:
    assert tag("agentic", "acme") == "agentic:{acme}"


def test_tenants_have_tags_of_their_own_whatever_they_are_called() -> None:
    names = ["", "%", "%25", "{", "}", "{}", "a}b", "a{b", "%7B", "acme"]

    tags = [tag("agentic", name) for name in names]

    assert len(set(tags)) == len(names)
    assert all(one.count("{") == one.count("}") == 1 and "{}" not in one for one in tags)


def test_a_namespace_with_a_brace_is_refused() -> None:
    for namespace in ("", "a{b", "a}b"):
        with pytest.raises(ValueError, match="allowed is text without braces"):
            tag(namespace, "acme")


def test_all_keys_of_a_ledger_carry_the_tag() -> None:
    keys = LedgerKeys.of("agentic", "acme")

    for key in (*keys.shared, keys.queue, keys.counters, *keys.with_calls(["acme:key:1"])):
        assert key.startswith("agentic:{acme}:ledger:")
    assert len(set(keys.shared)) == len(keys.shared)

"""The counters of a tenant on the server, read in pieces, so that many keep nobody waiting."""

import asyncio
from collections.abc import Mapping
from heapq import merge

from agentic_trading.governance.ledger import Balance
from agentic_trading.governance.ledgers.redis_counters import SHORT_LIVED, CounterKey
from agentic_trading.governance.ledgers.redis_codec import read_balance
from agentic_trading.governance.ledgers.redis_tenant import RedisTenantState
from agentic_trading.governance.ledgers.limit_set import LimitSet
from agentic_trading.governance.ledgers.scripts.redis import ScriptServer
from agentic_trading.governance.limit import ANY, ScopeKind
from agentic_trading.governance.windows import Window

_AT_ONCE = 250


async def every_balance(server: ScriptServer, tenant: RedisTenantState, rules: LimitSet) -> list[Balance]:
    """Return all counters in the order of their names."""
    pages = [sorted(page) async for page in server.pages(tenant.keys.counters)]
    found: list[Balance] = []
    last = b""
    for number, (name, packed) in enumerate(merge(*pages), start=1):
        if name != last:
            found.append(read_balance(tenant.name, name, packed, rules))
        last = name
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


async def limited_balances(
    server: ScriptServer, tenant: RedisTenantState, rules: LimitSet, newest: Mapping[Window, str]
) -> list[Balance]:
    """Return the counters of agents, workflows and the tenant that have a ceiling, in the newest windows; found by name."""
    names: set[str] = set()
    for kind in ScopeKind:
        if kind not in SHORT_LIVED:
            names |= await _names(server, tenant, kind, rules, newest)
    return [
        read_balance(tenant.name, name, packed, rules)
        async for page in server.values(tenant.keys.counters, sorted(names))
        for name, packed in page
    ]


async def _names(
    server: ScriptServer, tenant: RedisTenantState, kind: ScopeKind, rules: LimitSet, newest: Mapping[Window, str]
) -> set[str]:
    names: set[str] = set()
    for id_, window in rules.limited(kind):
        window_id = newest.get(window)
        if window_id is None:
            continue
        if id_ != ANY:
            names.add(CounterKey(kind, window, window_id, id_).name)
        else:
            prefix = f"{kind}/{window}/"
            members = await server.members(tenant.keys.index, prefix)
            names |= {f"{prefix}{window_id}/{member[len(prefix) :]}" for member in members}
    return names

"""Rates and breakers shared by every process that asks the same Redis."""

import json
from collections.abc import Mapping
from hashlib import sha1
from importlib import resources
from typing import Any, Literal, assert_never
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from agentic_trading.governance.errors import LimiterUnavailableError
from agentic_trading.governance.limiter import (
    LONGEST_PAUSE_S,
    LOOK_AGAIN_S,
    MOST_TOKENS,
    CircuitBreakerConfig,
    CircuitState,
    Deployment,
    DeploymentStatus,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    RetryBudget,
    Throttled,
)
from agentic_trading.governance.limiters.deployment import (
    LOOKED_AT,
    PLACE_S,
    RETRY_SLOTS,
    SLOT_LOOK_MORE_MS,
    SLOT_LOOK_MS,
)
from agentic_trading.governance.rate_arithmetic import PROBE_LOOK_MS, SLOTS, slot_length_ms
from agentic_trading.governance.redis import pool_of, within_time

CONNECTIONS = 32
CONNECTS_WITHIN_S = 0.5
KEPT_S = 172_800.0
"""A lane that nobody asked for in two days begins anew: longer than any lease, pause and window."""

_KEYS = ("lane", "inside", "permits", "line", "places")


class RedisLimiter:
    """Keep the port's promise among all processes that name the same server and `namespace`.

    Every method is one script, so one step, at the server's time. Limits and rules are each process's own: where they
    differ, each lets in by what it was told, from the same buckets. `limits` are those of named lanes, `default` those
    of every other one by itself. What the server forgets is only a lane that begins anew.

    Make it before the loop runs, or in a thread: it reads its scripts from disk.
    """

    def __init__(
        self,
        url: str,
        limits: Mapping[Deployment, RateLimits] | None = None,
        *,
        default: RateLimits = RateLimits(),  # noqa: B008 - a frozen value
        breaker: CircuitBreakerConfig = CircuitBreakerConfig(),  # noqa: B008 - a frozen value
        retries: RetryBudget = RetryBudget(),  # noqa: B008 - a frozen value
        place_s: float = PLACE_S,
        namespace: str = "agentic",
    ) -> None:
        self._limits = dict(limits or {})
        self._default = default
        self._shared = _shared_rules(breaker, retries, place_s)
        self._namespace = namespace
        self._rules: dict[Deployment, str] = {}
        self._scripts = {name: _Script(name) for name in ("enter", "leave", "give_up", "status")}
        pool = pool_of(url, connections=CONNECTIONS, connect_s=CONNECTS_WITHIN_S)
        self._client = Redis.from_pool(pool)

    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        """Let an attempt in, or say for how long not."""
        answer = await self._run(
            "enter", entry.lane, entry.id, entry.tokens, entry.priority, _ms(entry.lease_s), int(entry.is_retry)
        )  # fmt: skip
        return _read(answer, entry)

    async def leave(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        pause_s: float | None = None,
    ) -> None:
        """End a permit; harmless twice, and after its lease."""
        used = -1 if tokens is None else min(max(tokens, 0), MOST_TOKENS)
        pause_ms = _ms(min(pause_s, LONGEST_PAUSE_S)) if pause_s is not None and pause_s > 0 else 0
        await self._run("leave", permit.lane, permit.id, str(outcome), used, pause_ms)

    async def give_up(self, entry: PermitRequest) -> None:
        """Forget an attempt that does not want to enter any more and was not sent."""
        await self._run("give_up", entry.lane, entry.id)

    async def status(self, lane: Deployment) -> DeploymentStatus:
        """Return how a lane stands."""
        told = json.loads(await self._run("status", lane, ""))
        return DeploymentStatus(
            lane=lane,
            limits=self._limits.get(lane, self._default),
            breaker=CircuitState(told["breaker"]),
            answered=told["answered"],
            failed=told["failed"],
            in_flight=told["in_flight"],
            waiting=told["waiting"],
            requests_left=told.get("requests_left"),
            tokens_left=told.get("tokens_left"),
            retries_left=told["retries_left"],
            paused_s=told["paused_ms"] / 1000,
        )

    async def aclose(self) -> None:
        """Close the connections; permits in flight end by their leases."""
        await self._client.aclose()

    async def _run(self, name: str, lane: Deployment, id_: str, *arguments: str | int) -> Any:
        script = self._scripts[name]
        keys = _keys(self._namespace, lane)
        values = (*keys, self._rules_of(lane), id_, *arguments)
        try:
            async with within_time():
                try:
                    return await self._client.evalsha(script.sha, len(keys), *values)
                except NoScriptError:  # a new server, or one that was told to forget
                    return await self._client.eval(script.text, len(keys), *values)
        except (RedisError, OSError) as e:
            raise LimiterUnavailableError(f"{type(e).__name__}: {e}") from e

    def _rules_of(self, lane: Deployment) -> str:
        rules = self._rules.get(lane)
        if rules is None:
            limits = self._limits.get(lane, self._default)
            own = {
                "requests": limits.requests_per_minute,
                "tokens": limits.tokens_per_minute,
                "concurrent": limits.concurrent,
            }
            given = {name: value for name, value in own.items() if value is not None}
            rules = self._rules[lane] = json.dumps(self._shared | given)
        return rules


class _Script:
    """A script with what all of them begin with; the server knows it by the SHA-1 of its text."""

    def __init__(self, name: str) -> None:
        folder = resources.files("agentic_trading.governance.limiters") / "scripts"
        parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in ("lane", name)]
        self.text = "\n".join(parts)
        self.sha = sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def _read(answer: list[Any], entry: PermitRequest) -> Permit | Throttled | NotPermitted:
    kind: Literal[b"permit", b"wait", b"shut"] = answer[0]
    match kind:
        case b"permit":
            return Permit(entry.lane, entry.id, answer[1])
        case b"wait":
            return Throttled(entry.lane, answer[1].decode(), answer[2] / 1000)
        case b"shut":
            return NotPermitted(entry.lane, answer[1].decode(), answer[2] / 1000)
        case _:
            assert_never(kind)


def _keys(namespace: str, lane: Deployment) -> list[str]:
    """Name a lane's keys, all under one hash tag; a model's name may hold what means something in a key."""
    tag = f"{quote(namespace)}:{{{lane.provider}/{quote(lane.model, safe='')}}}"
    return [f"{tag}:{name}" for name in _KEYS]


def _shared_rules(
    breaker: CircuitBreakerConfig, retries: RetryBudget, place_s: float
) -> dict[str, int | float]:
    """Spell the rules as the scripts read them: whole milliseconds."""
    return {
        "ended_slot_ms": slot_length_ms(breaker.window_s, SLOTS),
        "ended_slots": SLOTS,
        "least_calls": breaker.least_calls,
        "failure_share": breaker.failure_share,
        "open_ms": round(breaker.open_s * 1000),
        "probes": breaker.probes,
        "probe_look_ms": PROBE_LOOK_MS,
        "retry_slot_ms": slot_length_ms(retries.window_s, RETRY_SLOTS),
        "retry_slots": RETRY_SLOTS,
        "retry_share": retries.share,
        "retry_least": retries.least,
        "slot_look_ms": SLOT_LOOK_MS,
        "slot_look_more_ms": SLOT_LOOK_MORE_MS,
        "look_again_ms": _ms(LOOK_AGAIN_S),
        "longest_pause_ms": _ms(LONGEST_PAUSE_S),
        "looked_at": LOOKED_AT,
        "place_ms": _ms(place_s),
        "keep_ms": _ms(KEPT_S),
    }


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))

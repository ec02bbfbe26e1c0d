"""Rate limits and circuit breakers shared by all processes with the same Redis."""

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal, assert_never

from redis.asyncio import Redis

from agentic_trading.governance import limiter as limiter_api
from agentic_trading.governance.errors import LimiterUnavailableError
from agentic_trading.governance.limiters import deployment as deployments
from agentic_trading.governance.redis import BundledScripts, Script, limiter_keys
from agentic_trading.redis import pool_of

CONNECTIONS = 32
CONNECTS_WITHIN_S = 0.5


class RedisLimiter:
    """A `Limiter` shared by all processes with the same server and `namespace`.

    Every method is one script, so one atomic step, in the server's time. Limits and rules belong to each
    process. If they differ, each process uses its own on the shared buckets. A deployment that the server
    forgets starts again. Create the limiter before the event loop runs, or in a thread, because it reads its
    scripts from disk.

    Args:
        url: The server.
        limits: The limits of single deployments.
        default: The limits of every other deployment.
        breaker: When a circuit opens and closes.
        retries: How many retries are allowed.
        place_s: Seconds after its wait for which a place in the queue is kept without another `acquire`.
        namespace: The first part of all keys.

    """

    def __init__(
        self,
        url: str,
        limits: Mapping[limiter_api.Deployment, limiter_api.RateLimits] | None = None,
        *,
        default: limiter_api.RateLimits = limiter_api.RateLimits(),  # noqa: B008 - a frozen value
        breaker: limiter_api.CircuitBreakerConfig = limiter_api.CircuitBreakerConfig(),  # noqa: B008 - a frozen value
        retries: limiter_api.RetryBudget = limiter_api.RetryBudget(),  # noqa: B008 - a frozen value
        place_s: float = deployments.PLACE_S,
        namespace: str = "agentic",
    ) -> None:
        self._limits = dict(limits or {})
        self._default = default
        self._shared = _shared_rules(breaker, retries, place_s)
        self._namespace = namespace
        self._rules: dict[limiter_api.RateLimits, str] = {}
        self._scripts = {name: _script(name) for name in ("acquire", "release", "cancel", "status")}
        pool = pool_of(url, connections=CONNECTIONS, connect_s=CONNECTS_WITHIN_S)
        self._client = Redis.from_pool(pool)
        self._bundles = BundledScripts(pool, _unavailable)

    async def acquire(
        self, request: limiter_api.PermitRequest
    ) -> limiter_api.Permit | limiter_api.Throttled | limiter_api.NotPermitted:
        """Return a permit, or how long to wait for one."""
        answer = await self._run(
            "acquire", request.deployment, request.id, request.tokens, request.priority, _ms(request.lease_s), int(request.is_retry)
        )  # fmt: skip
        return _read(answer, request)

    async def release(
        self,
        permit: limiter_api.Permit,
        outcome: limiter_api.PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        """End a permit. Repeating is harmless, also after its lease."""
        used = -1 if tokens is None else min(max(tokens, 0), limiter_api.MOST_TOKENS)
        cooldown_ms = (
            _ms(min(cooldown_s, limiter_api.LONGEST_COOLDOWN_S))
            if cooldown_s is not None and cooldown_s > 0
            else 0
        )
        await self._run("release", permit.deployment, permit.id, str(outcome), used, cooldown_ms)

    async def cancel(self, request: limiter_api.PermitRequest) -> None:
        """Forget an attempt that was not sent and will not be sent."""
        await self._run("cancel", request.deployment, request.id)

    async def status(self, deployment: limiter_api.Deployment) -> limiter_api.DeploymentStatus:
        """Return the state of a deployment."""
        found = json.loads(await self._run("status", deployment, ""))
        return limiter_api.DeploymentStatus(
            deployment=deployment,
            limits=self._limits.get(deployment, self._default),
            breaker=limiter_api.CircuitState(found["breaker"]),
            answered=found["answered"],
            failed=found["failed"],
            in_flight=found["in_flight"],
            waiting=found["waiting"],
            requests_left=found.get("requests_left"),
            tokens_left=found.get("tokens_left"),
            retries_left=found["retries_left"],
            cooldown_s=found["cooldown_ms"] / 1000,
        )

    async def aclose(self) -> None:
        """Close the connections. Permits in flight end by their leases."""
        try:
            await self._bundles.aclose()
        finally:
            await self._client.aclose()

    async def _run(
        self, name: str, deployment: limiter_api.Deployment, id_: str, *arguments: str | int
    ) -> Any:
        script = self._scripts[name]
        keys = limiter_keys(self._namespace, deployment)
        return await self._bundles.run(script, keys, (self._rules_of(deployment), id_, *arguments))

    def _rules_of(self, deployment: limiter_api.Deployment) -> str:
        limits = self._limits.get(deployment, self._default)
        rules = self._rules.get(limits)
        if rules is None:
            own = {
                "requests": limits.requests_per_minute,
                "tokens": limits.tokens_per_minute,
                "concurrent": limits.concurrent,
            }
            given = {name: value for name, value in own.items() if value is not None}
            rules = self._rules[limits] = json.dumps(self._shared | given)
        return rules


def _script(name: str) -> Script:
    """Return a script with the common part in front. Reads files."""
    folder = resources.files("agentic_trading.governance.limiters") / "scripts"
    return Script.of("\n".join((folder / f"{part}.lua").read_text("utf-8") for part in ("deployment", name)))


def _unavailable(e: Exception) -> LimiterUnavailableError:
    error = LimiterUnavailableError(f"{type(e).__name__}: {e}")
    error.__cause__ = e
    return error


def _read(
    answer: list[Any], request: limiter_api.PermitRequest
) -> limiter_api.Permit | limiter_api.Throttled | limiter_api.NotPermitted:
    kind: Literal[b"permit", b"wait", b"shut"] = answer[0]
    match kind:
        case b"permit":
            return limiter_api.Permit(request.deployment, request.id, answer[1])
        case b"wait":
            return limiter_api.Throttled(request.deployment, answer[1].decode(), answer[2] / 1000)
        case b"shut":
            return limiter_api.NotPermitted(request.deployment, answer[1].decode(), answer[2] / 1000)
        case _:
            assert_never(kind)


def _shared_rules(
    breaker: limiter_api.CircuitBreakerConfig, retries: limiter_api.RetryBudget, place_s: float
) -> dict[str, int | float]:
    """Return the rules for the scripts, in whole milliseconds."""
    return {
        "ended_slot_ms": deployments.slot_length_ms(breaker.window_s, deployments.SLOTS),
        "ended_slots": deployments.SLOTS,
        "min_calls": breaker.min_calls,
        "failure_rate": breaker.failure_rate,
        "wait_open_ms": round(breaker.wait_open_s * 1000),
        "half_open_calls": breaker.half_open_calls,
        "probe_look_ms": deployments.PROBE_LOOK_MS,
        "retry_slot_ms": deployments.slot_length_ms(retries.window_s, deployments.RETRY_SLOTS),
        "retry_slots": deployments.RETRY_SLOTS,
        "retry_share": retries.share,
        "retry_least": retries.least,
        "slot_look_ms": deployments.SLOT_LOOK_MS,
        "slot_look_more_ms": deployments.SLOT_LOOK_MORE_MS,
        "look_again_ms": _ms(limiter_api.LOOK_AGAIN_S),
        "longest_cooldown_ms": _ms(limiter_api.LONGEST_COOLDOWN_S),
        "looked_at": deployments.LOOKED_AT,
        "place_ms": _ms(place_s),
        "keep_ms": _ms(deployments.KEPT_S),
    }


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))

"""Limiters whose rates, permits or pauses break a promise, and the whole one that they are made from."""

from dataclasses import replace
from typing import ClassVar

from agentic_trading.clock import Clock
from agentic_trading.governance.limiter import (
    LEASE_S,
    Deployment,
    DeploymentStatus,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    RateLimits,
    Throttled,
)
from agentic_trading.governance.limiters.deployment import DeploymentLimiter, MemoryLimiter
from tests.contracts.limiter_opening import DEPLOYMENT, Rules


class Whole(MemoryLimiter):
    """A limiter that keeps its promises; each broken one below changes one thing."""

    def __init__(self, rules: Rules, clock: Clock) -> None:
        rules = self.opened(rules)
        super().__init__(
            default=rules.limits,
            breaker=rules.breaker,
            retries=rules.retries,
            place_s=rules.place_s,
            clock=clock,
        )
        self.left: set[str] = set()

    def opened(self, rules: Rules) -> Rules:
        return rules

    def changed(self, request: PermitRequest) -> PermitRequest:
        return request

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        return await super().acquire(self.changed(request))


class WithoutLimits(Whole):
    """The limits that are named are not kept."""

    forgets: ClassVar[frozenset[str]] = frozenset()

    def opened(self, rules: Rules) -> Rules:
        kept = {
            name: None if name in self.forgets else getattr(rules.limits, name)
            for name in ("requests_per_minute", "tokens_per_minute", "concurrent")
        }
        return replace(rules, limits=RateLimits(**kept))


class CountsNoRequests(WithoutLimits):
    forgets = frozenset({"requests_per_minute"})


class CountsNoTokens(WithoutLimits):
    forgets = frozenset({"tokens_per_minute"})


class CountsNobodyAtOnce(WithoutLimits):
    forgets = frozenset({"concurrent"})


class NeverFills(Whole):
    """The buckets' time stands still."""

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        limiter = self._limiter_of(request.deployment, self._now_ms())
        for bucket in (limiter._requests, limiter._tokens):
            if bucket is not None:
                bucket.at_ms = self._now_ms()
        return await super().acquire(request)


class TellsNoEnd(Whole):
    """How a call ended is not passed on as it was told."""

    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        await super().release(
            permit, self.ending(outcome), tokens=self.used(permit, tokens), cooldown_s=self.pause(cooldown_s)
        )

    def ending(self, outcome: PermitOutcome) -> PermitOutcome:
        return outcome

    def used(self, permit: Permit, tokens: int | None) -> int | None:
        return tokens

    def pause(self, cooldown_s: float | None) -> float | None:
        return cooldown_s


class KeepsWhatWasNotUsed(TellsNoEnd):
    def used(self, permit: Permit, tokens: int | None) -> int | None:
        return None


class ForgivesWhatWasUsedBeyond(TellsNoEnd):
    def used(self, permit: Permit, tokens: int | None) -> int | None:
        return None if tokens is None else min(tokens, permit.tokens)


class TakesUnknownUseForNone(TellsNoEnd):
    def used(self, permit: Permit, tokens: int | None) -> int | None:
        return tokens or 0


class ChargesWhatWasNotSent(TellsNoEnd):
    def ending(self, outcome: PermitOutcome) -> PermitOutcome:
        return PermitOutcome.NEUTRAL if outcome is PermitOutcome.UNUSED else outcome


class CountsRefusalsAsFailures(TellsNoEnd):
    def ending(self, outcome: PermitOutcome) -> PermitOutcome:
        return PermitOutcome.FAILED if outcome is PermitOutcome.NEUTRAL else outcome


class HearsNoPause(TellsNoEnd):
    def pause(self, cooldown_s: float | None) -> float | None:
        return None


class PausesForEver(TellsNoEnd):
    def pause(self, cooldown_s: float | None) -> float | None:
        return 1e-3 if cooldown_s is None or not 0 < cooldown_s < 3600 else cooldown_s


class ObeysTheLastPause(TellsNoEnd):
    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        self._limiter_of(permit.deployment, self._now_ms())._cooldown_until_ms = 0
        await super().release(permit, outcome, tokens=tokens, cooldown_s=cooldown_s)


class NeverLetsTheBiggestIn(Whole):
    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        if request.tokens > (self._default.tokens_per_minute or request.tokens):
            return Throttled(request.deployment, "tokens", 1.0)
        return await super().acquire(request)


class TakesBeforeItLooks(Whole):
    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        answer = await super().acquire(request)
        bucket = self._limiter_of(request.deployment, self._now_ms())._requests
        if bucket is not None and isinstance(answer, Throttled):
            bucket.take(1)
        return answer


class HasOneLaneForAll(Whole):
    def _limiter_of(self, deployment: Deployment, now_ms: int) -> DeploymentLimiter:
        return super()._limiter_of(DEPLOYMENT, now_ms)

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        return replace(await super().acquire(request), deployment=request.deployment)


class LimitsWhatHasNoLimit(Whole):
    def opened(self, rules: Rules) -> Rules:
        return rules if rules.limits != RateLimits() else replace(rules, limits=RateLimits(60, 10**6, 60))


class EntersTwice(Whole):
    """Every asking is a new entry."""

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        call = self._limiter_of(request.deployment, self._now_ms())._in_flight
        if request.id in call:
            call[f"{request.id} again {len(call)}"] = call.pop(request.id)
        return await super().acquire(request)


class LeavesTwice(Whole):
    """Leaving gives back, whoever leaves."""

    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        if permit.id in self.left:
            await super().acquire(PermitRequest(permit.deployment, permit.id, 0))
        self.left.add(permit.id)
        await super().release(permit, outcome, tokens=tokens, cooldown_s=cooldown_s)


class LeasesForEver(Whole):
    def changed(self, request: PermitRequest) -> PermitRequest:
        return replace(request, lease_s=LEASE_S)


class LeasesOnce(Whole):
    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        known = self._limiter_of(request.deployment, self._now_ms())._in_flight.get(request.id)
        return known.permit if known else await super().acquire(request)


class TellsNothing(Whole):
    async def status(self, deployment: Deployment) -> DeploymentStatus:
        return replace(await super().status(deployment), waiting=0)

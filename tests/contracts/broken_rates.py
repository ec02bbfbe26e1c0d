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
from agentic_trading.governance.limiters.deployment import DeploymentLimiter
from agentic_trading.governance.limiters.memory import MemoryLimiter
from tests.contracts.limiter_opening import LANE, Rules


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

    def changed(self, entry: PermitRequest) -> PermitRequest:
        return entry

    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        return await super().enter(self.changed(entry))


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

    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        book = self._book(entry.lane, self._now_ms())
        for bucket in (book._requests, book._tokens):
            if bucket is not None:
                bucket.at_ms = self._now_ms()
        return await super().enter(entry)


class TellsNoEnd(Whole):
    """How a call ended is not passed on as it was told."""

    async def leave(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        pause_s: float | None = None,
    ) -> None:
        await super().leave(
            permit, self.ending(outcome), tokens=self.used(permit, tokens), pause_s=self.pause(pause_s)
        )

    def ending(self, outcome: PermitOutcome) -> PermitOutcome:
        return outcome

    def used(self, permit: Permit, tokens: int | None) -> int | None:
        return tokens

    def pause(self, pause_s: float | None) -> float | None:
        return pause_s


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
    def pause(self, pause_s: float | None) -> float | None:
        return None


class PausesForEver(TellsNoEnd):
    def pause(self, pause_s: float | None) -> float | None:
        return 1e-3 if pause_s is None or not 0 < pause_s < 3600 else pause_s


class ObeysTheLastPause(TellsNoEnd):
    async def leave(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        pause_s: float | None = None,
    ) -> None:
        self._book(permit.lane, self._now_ms())._paused_until_ms = 0
        await super().leave(permit, outcome, tokens=tokens, pause_s=pause_s)


class NeverLetsTheBiggestIn(Whole):
    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        if entry.tokens > (self._default.tokens_per_minute or entry.tokens):
            return Throttled(entry.lane, "tokens", 1.0)
        return await super().enter(entry)


class TakesBeforeItLooks(Whole):
    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        answer = await super().enter(entry)
        bucket = self._book(entry.lane, self._now_ms())._requests
        if bucket is not None and isinstance(answer, Throttled):
            bucket.take(1)
        return answer


class HasOneLaneForAll(Whole):
    def _book(self, lane: Deployment, now_ms: int) -> DeploymentLimiter:
        return super()._book(LANE, now_ms)

    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        return replace(await super().enter(entry), lane=entry.lane)


class LimitsWhatHasNoLimit(Whole):
    def opened(self, rules: Rules) -> Rules:
        return rules if rules.limits != RateLimits() else replace(rules, limits=RateLimits(60, 10**6, 60))


class EntersTwice(Whole):
    """Every asking is a new entry."""

    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        inside = self._book(entry.lane, self._now_ms())._inside
        if entry.id in inside:
            inside[f"{entry.id} again {len(inside)}"] = inside.pop(entry.id)
        return await super().enter(entry)


class LeavesTwice(Whole):
    """Leaving gives back, whoever leaves."""

    async def leave(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        pause_s: float | None = None,
    ) -> None:
        if permit.id in self.left:
            await super().enter(PermitRequest(permit.lane, permit.id, 0))
        self.left.add(permit.id)
        await super().leave(permit, outcome, tokens=tokens, pause_s=pause_s)


class LeasesForEver(Whole):
    def changed(self, entry: PermitRequest) -> PermitRequest:
        return replace(entry, lease_s=LEASE_S)


class LeasesOnce(Whole):
    async def enter(self, entry: PermitRequest) -> Permit | Throttled | NotPermitted:
        known = self._book(entry.lane, self._now_ms())._inside.get(entry.id)
        return known.permit if known else await super().enter(entry)


class TellsNothing(Whole):
    async def status(self, lane: Deployment) -> DeploymentStatus:
        return replace(await super().status(lane), waiting=0)

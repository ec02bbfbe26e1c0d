"""Limiters that break one promise each, as others really do: the suite has to find every one."""

from dataclasses import replace
from typing import Any, ClassVar

from agentic_trading.clock import Clock
from agentic_trading.governance.limiter import (
    CircuitState,
    Deployment,
    DeploymentStatus,
    NotPermitted,
    Permit,
    PermitOutcome,
    PermitRequest,
    Throttled,
)
from tests.contracts import limiter_breaker as breaker
from tests.contracts import limiter_queue as line
from tests.contracts import limiter_rates as rates
from tests.contracts.broken_rates import (
    ChargesWhatWasNotSent,
    CountsNobodyAtOnce,
    CountsNoRequests,
    CountsNoTokens,
    CountsRefusalsAsFailures,
    EntersTwice,
    ForgivesWhatWasUsedBeyond,
    HasOneLaneForAll,
    HearsNoPause,
    KeepsWhatWasNotUsed,
    LeasesForEver,
    LeasesOnce,
    LeavesTwice,
    LimitsWhatHasNoLimit,
    NeverFills,
    NeverLetsTheBiggestIn,
    ObeysTheLastPause,
    PausesForEver,
    TakesBeforeItLooks,
    TakesUnknownUseForNone,
    TellsNoEnd,
    TellsNothing,
    Whole,
)
from tests.contracts.limiter_opening import Promise, Rules


class HasNoLine(Whole):
    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        answer = await super().acquire(request)
        if isinstance(answer, Throttled) and answer.reason == "queue":
            self._limiter_of(request.deployment, self._now_ms())._queue = type(
                self._limiter_of(request.deployment, 0)._queue
            )()
            return await super().acquire(request)
        return answer


class BigOnesStepAside(HasNoLine):
    """Whoever fits goes, whatever others wait for."""


class KnowsNoPriority(Whole):
    def changed(self, request: PermitRequest) -> PermitRequest:
        return replace(request, priority=0)


class KnowsNoAgeing(Whole):
    """A priority goes before any wait."""

    def changed(self, request: PermitRequest) -> PermitRequest:
        return replace(request, priority=request.priority * 10**6)


class NeverMovesAPlace(Whole):
    def __init__(self, rules: Rules, clock: Clock) -> None:
        super().__init__(rules, clock)
        self.first: dict[str, int] = {}

    def changed(self, request: PermitRequest) -> PermitRequest:
        return replace(request, priority=self.first.setdefault(request.id, request.priority))


class OneAfterTheOther(Whole):
    """Nobody but the first in line may enter, asleep or not."""

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        order = self._limiter_of(request.deployment, self._now_ms())._queue._order
        if order and order[0][2] != request.id:
            return Throttled(request.deployment, "queue", 0.05)
        return await super().acquire(request)


class LooksAtTheFirstOnly(Whole):
    """Those far behind count as nobody."""

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        placed = self._limiter_of(request.deployment, self._now_ms())._queue
        if (
            len(placed) > 65
            and request.id not in placed._places
            and not self._limiter_of(request.deployment, 0)._in_flight
        ):
            return Permit(request.deployment, request.id, request.tokens)
        return await super().acquire(request)


class PlacesAreGivenOnce(Whole):
    """Asking again does not renew a place."""

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        places = self._limiter_of(request.deployment, self._now_ms())._queue._places
        before = places.get(request.id)
        answer = await super().acquire(request)
        if before is not None and request.id in places:
            places[request.id].until_ms = before.until_ms
            self._limiter_of(request.deployment, 0)._queue._first_over_ms = 0
        return answer


class PlacesAreForEver(Whole):
    def opened(self, rules: Rules) -> Rules:
        return replace(rules, place_s=3600)


class NobodyGivesUp(Whole):
    async def cancel(self, request: PermitRequest) -> None:
        pass


class GivesUpThePlaceOnly(Whole):
    async def cancel(self, request: PermitRequest) -> None:
        self._limiter_of(request.deployment, self._now_ms())._queue.remove(request.id)


class KeepsThoseTurnedAway(Whole):
    async def status(self, deployment: Deployment) -> DeploymentStatus:
        return replace(await super().status(deployment), waiting=1)


class OtherRules(Whole):
    """The breaker or the retry budget goes by rules of its own."""

    breaker: ClassVar[dict[str, Any]] = {}
    retries: ClassVar[dict[str, Any]] = {}

    def opened(self, rules: Rules) -> Rules:
        return replace(
            rules,
            breaker=replace(rules.breaker, **self.breaker),
            retries=replace(rules.retries, **self.retries),
        )


class NeverOpens(OtherRules):
    breaker: ClassVar = {"min_calls": 10_000}


class OpensAtOnce(OtherRules):
    breaker: ClassVar = {"min_calls": 1}


class NeverForgetsFailures(OtherRules):
    breaker: ClassVar = {"window_s": 3600}


class LetsAllProbesIn(OtherRules):
    breaker: ClassVar = {"half_open_calls": 100}


class NeverCloses(TellsNoEnd):
    """A probe's answer is not heard."""

    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        is_probe = (await self.status(permit.deployment)).breaker is CircuitState.HALF_OPEN
        ending = PermitOutcome.NEUTRAL if is_probe else outcome
        await super().release(permit, ending, tokens=tokens, cooldown_s=cooldown_s)


class KeepsItsProbes(Whole):
    """A probe that ended otherwise, or died, is thought to be under way."""

    async def acquire(self, request: PermitRequest) -> Permit | Throttled | NotPermitted:
        found = self._limiter_of(request.deployment, self._now_ms())._breaker
        before = found.probes
        answer = await super().acquire(request)
        if before and found.open_until_ms:
            found.probes = max(before, found.probes)
        return answer

    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        found = self._limiter_of(permit.deployment, self._now_ms())._breaker
        probes = found.probes
        await super().release(permit, outcome, tokens=tokens, cooldown_s=cooldown_s)
        if found.open_until_ms:
            found.probes = probes


class KeepsDeadProbes(LeasesForEver):
    """A probe's lease does not end."""


class CountsOldCalls(Whole):
    """What was sent in another era counts in this one."""

    async def release(
        self,
        permit: Permit,
        outcome: PermitOutcome,
        *,
        tokens: int | None = None,
        cooldown_s: float | None = None,
    ) -> None:
        limiter = self._limiter_of(permit.deployment, self._now_ms())
        call = limiter._in_flight.get(permit.id)
        if call is not None:
            call.era = limiter._breaker.era
        await super().release(permit, outcome, tokens=tokens, cooldown_s=cooldown_s)


class CountsNoRetries(Whole):
    def changed(self, request: PermitRequest) -> PermitRequest:
        return replace(request, is_retry=False)


class RetriesHaveNoShare(OtherRules):
    retries: ClassVar = {"share": 0}


class NeverForgetsRetries(OtherRules):
    retries: ClassVar = {"window_s": 3600}


BROKEN: list[tuple[type[Whole], Promise]] = [
    (CountsNoRequests, rates.no_more_requests_enter_than_the_limit),
    (NeverFills, rates.requests_come_back_with_time),
    (CountsNoTokens, rates.no_more_tokens_enter_than_the_limit),
    (NeverFills, rates.tokens_come_back_with_time),
    (KeepsWhatWasNotUsed, rates.tokens_that_were_not_used_come_back),
    (ForgivesWhatWasUsedBeyond, rates.tokens_used_beyond_what_was_taken_are_owed),
    (TakesUnknownUseForNone, rates.tokens_stay_taken_where_the_use_is_not_known),
    (NeverLetsTheBiggestIn, rates.more_than_the_bucket_holds_enters_when_it_is_full),
    (CountsNobodyAtOnce, rates.calls_at_once_are_capped),
    (TakesBeforeItLooks, rates.who_waits_takes_nothing),
    (HasOneLaneForAll, rates.lanes_do_not_share),
    (LimitsWhatHasNoLimit, rates.a_lane_without_limits_lets_everybody_in),
    (EntersTwice, rates.the_same_entry_gets_the_same_permit),
    (LeavesTwice, rates.leaving_twice_is_harmless),
    (ChargesWhatWasNotSent, rates.what_was_not_sent_is_given_back),
    (LeasesForEver, rates.a_permit_ends_with_its_lease),
    (LeasesOnce, rates.asking_again_begins_the_lease_anew),
    (HearsNoPause, rates.a_pause_holds_everybody_until_it_is_over),
    (ObeysTheLastPause, rates.a_shorter_pause_does_not_end_a_longer_one),
    (PausesForEver, rates.a_pause_has_an_end),
    (TellsNothing, rates.a_lane_tells_how_it_stands),
    (HasNoLine, line.who_came_first_goes_first),
    (KnowsNoPriority, line.a_higher_priority_goes_first),
    (KnowsNoAgeing, line.a_priority_is_worth_seconds_of_waiting),
    (NeverMovesAPlace, line.another_priority_moves_a_place),
    (BigOnesStepAside, line.a_big_one_is_not_starved_by_small_ones),
    (OneAfterTheOther, line.a_place_keeps_no_more_than_its_share),
    (LooksAtTheFirstOnly, line.those_far_behind_wait_for_the_line_to_move),
    (PlacesAreGivenOnce, line.a_place_is_kept_for_who_asks_again),
    (PlacesAreForEver, line.who_does_not_ask_again_loses_the_place),
    (NobodyGivesUp, line.who_gives_up_leaves_the_line),
    (GivesUpThePlaceOnly, line.who_gives_up_gives_back_what_it_was_given),
    (KeepsThoseTurnedAway, line.who_is_turned_away_has_no_place),
    (NeverOpens, breaker.the_circuit_opens_at_its_share_of_failures),
    (OpensAtOnce, breaker.a_few_failures_open_nothing),
    (CountsRefusalsAsFailures, breaker.what_says_nothing_of_the_provider_is_not_counted),
    (NeverForgetsFailures, breaker.failures_pass_with_the_window),
    (LetsAllProbesIn, breaker.a_half_open_circuit_lets_its_probes_in_and_nobody_else),
    (NeverCloses, breaker.an_answered_probe_closes_the_circuit),
    (NeverCloses, breaker.a_failed_probe_opens_the_circuit_again),
    (KeepsItsProbes, breaker.a_probe_that_was_not_sent_lets_another_try),
    (KeepsDeadProbes, breaker.a_probe_that_died_lets_another_try),
    (CountsOldCalls, breaker.what_was_sent_before_says_nothing_of_now),
    (CountsNoRetries, breaker.retries_have_a_budget_and_first_calls_none),
    (RetriesHaveNoShare, breaker.retries_may_be_a_share_of_the_calls),
    (ChargesWhatWasNotSent, breaker.a_retry_that_was_not_sent_is_not_counted),
    (NeverForgetsRetries, breaker.retries_come_back_with_time),
]

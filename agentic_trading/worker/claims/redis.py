"""Claims of all processes that use the same Redis."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final

import structlog
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from agentic_trading.cancellation import OwnedTasks
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance.redis import tag
from agentic_trading.ids import random_id
from agentic_trading.redis import pool_of, within_time
from agentic_trading.worker.claim import (
    Busy,
    Claim,
    ClaimKey,
    ClaimLostError,
    ClaimStoreUnavailableError,
    Finished,
    OtherContent,
    Spell,
)

LEASE_S: Final = 15.0
"""How long a process counts as living after it was heard last; as long as a member of a Kafka group."""

DONE_S: Final = 24 * 3600.0
"""How long a finished envelope is known: longer than a message may come again."""

LAST_S: Final = 15 * 60.0
"""How long the last attempt of a finished envelope is kept: as long as its caller waits for a reply."""

_SURE: Final = 0.8
"""The part of a lease in which it surely lasts, however the clocks go."""

_LOOK_AGAIN_S: Final = 0.25

log = structlog.get_logger()


@dataclass(slots=True)
class _Lease:
    """The lease of this process in a tenant: until when it surely lasts, and since when it has without a gap."""

    since: float
    until: float


@dataclass(slots=True)
class _HeldKey:
    """What a task of this process runs: the token that it was given, and when it asked for it."""

    at: float
    token: str = ""


class RedisClaimStore:
    """Keep the port's promises among all processes that name the same server and `namespace`.

    An owner is one start of a process. It lives for `lease_s` seconds after it was heard last, by the server's clock, and
    is heard every third of that. A claim whose owner does not live is free; so is at once what an earlier process with
    the same `name` holds: only one process at a time may have a name. Without a name there is none before.

    A claim that is not finished stays until it is; a finished one is known for `DONE_S`, its last attempt for `LAST_S`.
    Make it before the loop runs, or in a thread: it reads its script from disk.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        namespace: str = "agentic",
        lease_s: float = LEASE_S,
        clock: Clock | None = None,
    ) -> None:
        self._owner = f"{random_id()}:{name}"
        self._namespace = namespace
        self._lease_s = lease_s
        self._clock = clock or SystemClock()
        self._script = (files(__package__) / "claims.lua").read_text("utf-8")
        self._sha1 = sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._client = Redis.from_pool(pool_of(url))
        self._leases: dict[str, _Lease] = {}
        self._held: dict[ClaimKey, _HeldKey] = {}
        self._tasks = OwnedTasks()
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Be heard from now on, in every tenant of which something is claimed."""
        if self._renewing is None:
            self._renewing = self._tasks.start(self._renew(), name="claims-lease")

    def holds(self, claim: Claim) -> bool:
        """Return whether the lease of this process has lasted since it asked for `claim`, and surely lasts now."""
        held, lease = self._held.get(claim.key), self._leases.get(claim.key.tenant)
        if held is None or lease is None or held.token != str(claim.token):
            return False
        return lease.since <= held.at and self._clock.monotonic() < lease.until

    async def claim(self, key: ClaimKey, content: str) -> Claim | Busy | Finished | OtherContent:
        """Take `key`, unless it is finished or its owner lives."""
        held = self._held.get(key)
        if held is not None and not held.token:  # another task asks for it
            return Busy()
        asking = _HeldKey(self._clock.monotonic())
        if held is None:
            self._held[key] = asking
        try:
            found = await self._claimed(key, content, asking.at, held.token if held is not None else "")
        except BaseException:
            if held is None:
                del self._held[key]
            raise
        if not isinstance(found, Claim):
            if held is None:
                del self._held[key]
            return found
        self._held[key] = asking
        asking.token = str(found.token)
        return found

    async def _claimed(
        self, key: ClaimKey, content: str, asked_at: float, handed_out: str
    ) -> Claim | Busy | Finished | OtherContent:
        answer = await self._run("claim", key, content, handed_out)
        match answer[0]:
            case b"other":
                return OtherContent()
            case b"finished":
                return Finished(answer[1])
            case b"busy":
                self._heard(key.tenant, asked_at)
                return Busy()
            case _:
                self._heard(key.tenant, asked_at)
                fields = dict(zip(answer[3][::2], answer[3][1::2], strict=True))
                attempts = {mark: _by_attempt(fields, mark) for mark in (b"i:", b"k:")}
                return Claim(key, int(answer[1]), int(answer[2]), attempts[b"i:"], attempts[b"k:"])

    async def until_free(self, key: ClaimKey) -> None:  # noqa: ARG002 - the server is asked for it, again and again
        """Wait a little: how long an owner takes is not known."""
        await self._clock.sleep(_LOOK_AGAIN_S)

    async def intend(self, claim: Claim, attempt: int, facts: bytes) -> None:
        """Note that `attempt` is about to be sent, or not."""
        await self._step("intend", claim, attempt, facts)

    async def keep(self, claim: Claim, attempt: int, spell: Spell) -> None:
        """Keep what `attempt` gave."""
        await self._step("keep", claim, attempt, spell())

    async def finish(self, claim: Claim, spell: Spell) -> None:
        """Say that the envelope is done for good."""
        try:
            await self._step("finish", claim, spell(), round(DONE_S * 1000), round(LAST_S * 1000))
        finally:
            self._let_go(claim)

    async def release(self, claim: Claim) -> None:
        """Let another owner take it; if the server cannot be reached, so does the next claim of this process."""
        try:
            await self._run("release", claim.key, claim.token)
        finally:
            self._let_go(claim)

    async def aclose(self) -> None:
        """End the lease, if the server can be reached; else it runs out."""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        await self._tasks.aclose()
        try:
            for tenant in list(self._leases):
                del self._leases[tenant]
                await self._run("end", ClaimKey(tenant, ""))
        except ClaimStoreUnavailableError as e:
            log.warning("claims_not_ended", reason=str(e))
        await self._client.aclose()

    async def _step(self, step: str, claim: Claim, *given: str | bytes | int) -> None:
        answer = await self._run(step, claim.key, claim.token, *given)
        if answer[0] == b"lost":
            raise ClaimLostError(claim.key)

    def _let_go(self, claim: Claim) -> None:
        held = self._held.get(claim.key)
        if held is not None and held.token == str(claim.token):
            del self._held[claim.key]

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / 3)
            try:
                for tenant in list(self._leases):
                    asked_at = self._clock.monotonic()
                    await self._run("renew", ClaimKey(tenant, ""))
                    self._heard(tenant, asked_at)
            except ClaimStoreUnavailableError as e:
                log.warning("claims_not_renewed", reason=str(e))

    def _heard(self, tenant: str, at: float) -> None:
        """Note that the server has heard this process, which it asked for at `at`."""
        lease, now = self._leases.get(tenant), self._clock.monotonic()
        until = at + _SURE * self._lease_s
        if lease is None or lease.until < now:
            self._leases[tenant] = _Lease(at, until)
            return
        lease.until = max(lease.until, until)
        if until > now:  # answers may come in another order than they were asked for
            lease.since = min(lease.since, at)

    async def _run(self, step: str, key: ClaimKey, *given: str | bytes | int) -> Any:
        prefix = tag(self._namespace, key.tenant)
        keys = (
            f"{prefix}:claim:{key.envelope_id}",
            f"{prefix}:owners",
            f"{prefix}:last:{key.envelope_id}",
        )
        values = (*keys, step, self._owner, round(self._lease_s * 1000), *given)
        try:
            async with within_time():
                try:
                    return await self._client.evalsha(self._sha1, len(keys), *values)
                except NoScriptError:  # a new server, or one whose scripts were flushed
                    return await self._client.eval(self._script, len(keys), *values)
        except (RedisError, OSError) as e:
            raise ClaimStoreUnavailableError(f"{type(e).__name__}: {e}") from e


def _by_attempt(fields: Mapping[bytes, bytes], mark: bytes) -> dict[int, bytes]:
    return {int(name[2:]): value for name, value in fields.items() if name.startswith(mark)}

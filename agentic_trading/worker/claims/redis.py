"""A claim store for all processes that use the same Redis."""

import asyncio
import math
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from agentic_trading.cancellation import OwnedTasks, run_shielded
from agentic_trading.clock import Clock, SystemClock
from agentic_trading.governance import redis
from agentic_trading.ids import random_id
from agentic_trading.logger import get_logger
from agentic_trading.redis import pool_of, within_time
from agentic_trading.worker import claim as claim_api

LEASE_S: Final = 15.0
"""How long a process counts as living after its last renewal: as long as a member of a Kafka group."""

DONE_S: Final = 24 * 3600.0
"""How long a finished envelope is remembered: longer than its message may be delivered again."""

LAST_S: Final = 15 * 60.0
"""How long the attempts of a finished envelope are kept: as long as its caller waits for a reply."""

_SURE: Final = 0.8
"""The part of a lease that is safe to use, in spite of differences between clocks."""

MOST_LEFT: Final = 1000
"""The maximum number of claims without a living owner that are listed."""

_LOOK_AGAIN_S: Final = 0.25

# KEYS: the name. ARGV: the log of the worker, its host, and for how many ms it has the name.
_TAKE_NAME: Final = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then
  return held
end
redis.call('SET', KEYS[1], ARGV[1] .. ARGV[2], 'PX', ARGV[3])
"""

# KEYS: the name. ARGV: the log of the worker. It deletes the name, because a short expiry would keep the name
# in use for some milliseconds after `aclose`, and a worker that starts then would be rejected.
_RELEASE_NAME: Final = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
"""

log = get_logger()


@dataclass(slots=True)
class _Lease:
    """The time span in which this process surely has its lease in a tenant, without a gap."""

    since: float
    until: float


class _Keys(NamedTuple):
    """The keys of one claim, in the order of its script."""

    sequence: str
    claim: str
    owners: str
    last: str
    open: str


@dataclass(slots=True)
class _HeldKey:
    """A claim of a task in this process: its token, and when the task requested it."""

    at: float
    token: str = ""


@dataclass(frozen=True, slots=True)
class _WorkerName:
    """The name of a worker in a namespace.

    One log at a time may use it. An empty name may be used by all.
    """

    client: Any
    namespace: str
    name: str
    log_id: str
    host: str
    lease_s: float

    async def take(self) -> None:
        """Take or renew the name for a lease.

        Raises `NameTakenError` and `ClaimStoreUnavailableError`.
        """
        # Shielded, because a cancelled renewal would take the name again if it came after `release`.
        if self.name and (held := await run_shielded(self._run(_TAKE_NAME, self.host, self._lease_ms))):
            raise claim_api.NameTakenError(
                self.name, held.decode().partition("@")[2], self.host, lease_s=self.lease_s
            )

    async def release(self) -> None:
        """Release the name if this log has it. Raises `ClaimStoreUnavailableError`."""
        if self.name:
            await self._run(_RELEASE_NAME)

    @property
    def _lease_ms(self) -> int:
        return round(1000 * self.lease_s)

    async def _run(self, script: str, *given: str | int) -> Any:
        key = f"{self.namespace}:worker:{self.name}"
        async with _reaching():
            return await self.client.eval(script, 1, key, f"{self.log_id}@", *given)


class RedisClaimStore:
    """A claim store for all processes that use the same server and `namespace`.

    An owner is one start of a process. It counts as living for `lease_s` seconds after its last renewal, by
    the server's clock. It renews every third of that, in each tenant of which it holds or requests a claim. A
    claim without a living owner is free. Claims of an earlier process with the same `name` and the log
    `log_id` are free immediately, because only one process at a time can use a log. One log at a time may use
    a name, for a lease. `host` is shown to other workers with the same name. Without a name, there are no
    earlier processes.

    An unfinished claim is stored without a time limit. A finished claim is stored for `DONE_S`, and its
    attempts for `LAST_S`. The steps advance the sequence of the tenant's ledger in the same namespace. If the
    claims or the ledger detect that the server was restored to an older state, both close. A rebuild of the
    ledger opens both. During the rebuild, no claim and no send can begin.

    Create the store before the loop runs, or in a thread, because it reads its script from disk.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        log_id: str = "",
        host: str = "",
        namespace: str = "agentic",
        lease_s: float = LEASE_S,
        clock: Clock | None = None,
    ) -> None:
        self._process = random_id()
        self._owner = f"{self._process}:{name and f'{log_id}@{name}'}"
        self._namespace = namespace
        self._lease_s = lease_s
        self._clock = clock or SystemClock()
        self._script = redis.Script.of(
            redis.sequence_script() + (files(__package__) / "claims.lua").read_text("utf-8")
        )
        pool = pool_of(url)
        self._client = Redis.from_pool(pool)
        self._bundles = redis.BundledScripts(pool, _unavailable)
        self._name = _WorkerName(self._client, namespace, name, log_id or self._process, host, lease_s)
        self._seen: dict[str, redis.SequenceGuard] = {}
        self._closed: set[str] = set()
        self._leases: dict[str, _Lease] = {}
        self._held: dict[claim_api.ClaimKey, _HeldKey] = {}
        self._tasks = OwnedTasks()
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Register this process, and renew its name and its leases from now on."""
        if self._renewing is None:
            await self._name.take()
            self._renewing = self._tasks.start(self._renew(), name="claims-lease")

    def holds(self, claim: claim_api.Claim) -> bool:
        """Return whether this process was surely living at all times since it requested `claim`."""
        held, lease = self._held.get(claim.key), self._leases.get(claim.key.tenant)
        if held is None or lease is None or held.token != str(claim.token):
            return False
        return lease.since <= held.at and self._clock.monotonic() < lease.until

    async def claim(
        self, key: claim_api.ClaimKey, content: str
    ) -> claim_api.Claim | claim_api.Busy | claim_api.Finished | claim_api.OtherContent:
        """Take `key`, unless it is finished or its owner is living."""
        held = self._held.get(key)
        if held is not None and not held.token:  # another task is claiming it now
            return claim_api.Busy()
        asking = _HeldKey(self._clock.monotonic())
        if held is None:
            self._held[key] = asking
        try:
            found = await self._claimed(key, content, asking.at, held.token if held is not None else "")
        except BaseException:
            if held is None:
                del self._held[key]
            raise
        if not isinstance(found, claim_api.Claim):
            if held is None:
                del self._held[key]
            return found
        self._held[key] = asking
        asking.token = str(found.token)
        return found

    async def _claimed(
        self, key: claim_api.ClaimKey, content: str, asked_at: float, handed_out: str
    ) -> claim_api.Claim | claim_api.Busy | claim_api.Finished | claim_api.OtherContent:
        reply = await self._run("claim", key, content, handed_out)
        match reply.word:
            case b"OTHER":
                return claim_api.OtherContent()
            case b"FINISHED":
                return claim_api.Finished(reply.rest[0])
            case b"BUSY":
                self._heard(key.tenant, asked_at)
                return claim_api.Busy()
            case _:
                self._heard(key.tenant, asked_at)
                token, count, raw = reply.rest
                fields = dict(zip(raw[::2], raw[1::2], strict=True))
                return claim_api.Claim(
                    key, int(token), int(count), _by_attempt(fields, b"i:"), _by_attempt(fields, b"k:")
                )

    async def until_free(self, key: claim_api.ClaimKey) -> None:  # noqa: ARG002 - the caller polls the server
        """Wait a little, because the time that an owner takes is unknown."""
        await self._clock.sleep(_LOOK_AGAIN_S)

    async def intend(self, claim: claim_api.Claim, attempt: int, facts: bytes) -> None:
        """Store that `attempt` is about to be sent, or that it is not."""
        await self._step("intend", claim, attempt, facts)

    async def keep(self, claim: claim_api.Claim, attempt: int, spell: claim_api.Spell) -> None:
        """Store the outcome of `attempt`."""
        await self._step("keep", claim, attempt, spell())

    async def finish(self, claim: claim_api.Claim, spell: claim_api.Spell) -> None:
        """Mark the envelope as finished for good."""
        try:
            await self._step("finish", claim, spell(), round(DONE_S * 1000), round(LAST_S * 1000))
        finally:
            self._let_go(claim)

    async def release(self, claim: claim_api.Claim) -> None:
        """Free the claim for another owner.

        If the server is unreachable, the next claim of this process takes it over.
        """
        try:
            await self._run("release", claim.key, claim.token)
        finally:
            self._let_go(claim)

    async def freeze(self, key: claim_api.ClaimKey, answer: bytes, keep_s: float) -> bytes:
        """Keep an answer, unless the key has one. Return the answer that is kept."""
        # Not a step of the sequence, because an answer that the server loses is only paid again.
        name = self._frozen(key)
        async with _reaching():
            if await self._client.set(name, answer, px=max(1, round(keep_s * 1000)), nx=True):
                return answer
        return await self.frozen(key) or answer

    async def frozen(self, key: claim_api.ClaimKey) -> bytes:
        """Return the answer that is kept, or empty bytes."""
        client: Any = self._client
        async with _reaching():
            return await client.get(self._frozen(key)) or b""

    async def left(self, tenant: str) -> Sequence[claim_api.AbandonedClaim]:
        """Return envelopes that no living process has run for a lease, oldest first.

        The query is not atomic, and returns at most `MOST_LEFT` of the oldest.
        """
        client: Any = self._client  # `Any`, because the types of its pipelines are wrong
        keys = self._keys(claim_api.ClaimKey(tenant, ""))
        async with _reaching():
            seconds, micros = await client.time()
            now_ms = seconds * 1000 + micros // 1000
            before_ms = now_ms - round(self._lease_s * 1000)
            ids = await client.zrange(
                keys.open, "-inf", str(before_ms), byscore=True, offset=0, num=MOST_LEFT
            )
            living = set(await client.zrange(keys.owners, f"({now_ms}", "+inf", byscore=True))
            pipeline = client.pipeline(transaction=False)
            for id_ in ids:
                claim = self._keys(claim_api.ClaimKey(tenant, id_.decode())).claim
                pipeline.hget(claim, "owner").hkeys(claim)
            found = await pipeline.execute()
        return [
            claim_api.AbandonedClaim.of(
                claim_api.ClaimKey(tenant, id_.decode()), _numbers(names, b"i:"), _numbers(names, b"k:")
            )
            for id_, owner, names in zip(ids, found[::2], found[1::2], strict=True)
            if owner not in living and names
        ]

    async def aclose(self) -> None:
        """End the leases if the server is reachable. Otherwise they expire."""
        has_begun = self._renewing is not None
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        await self._tasks.aclose()
        try:
            for tenant in list(self._leases):
                del self._leases[tenant]
                await self._run("end", claim_api.ClaimKey(tenant, ""))
            if has_begun:
                await self._name.release()
        except claim_api.ClaimStoreUnavailableError as e:
            log.warning("claims_not_ended", reason=str(e))
        finally:
            await self._bundles.aclose()
            await self._client.aclose()

    async def _step(self, step: str, claim: claim_api.Claim, *given: str | bytes | int) -> None:
        if (await self._run(step, claim.key, claim.token, *given)).word == b"LOST":
            raise claim_api.ClaimLostError(claim.key)

    def _let_go(self, claim: claim_api.Claim) -> None:
        held = self._held.get(claim.key)
        if held is not None and held.token == str(claim.token):
            del self._held[claim.key]

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(self._lease_s / 3)
            try:
                await self._name.take()
            except claim_api.ClaimStoreUnavailableError as e:
                log.warning("worker_name_not_renewed", name=self._name.name, reason=str(e))
            held = {key.tenant for key in self._held}
            self._leases = {tenant: lease for tenant, lease in self._leases.items() if tenant in held}
            async with asyncio.TaskGroup() as group:
                for tenant in self._leases:
                    group.create_task(self._renew_lease(tenant), name=f"claims-lease-{tenant}")

    async def _renew_lease(self, tenant: str) -> None:
        asked_at = self._clock.monotonic()
        try:
            await self._run("renew", claim_api.ClaimKey(tenant, ""))
        except claim_api.ClaimStoreUnavailableError as e:
            if isinstance(e, claim_api.ClaimsRolledBackError):
                self._leases[tenant].until = -math.inf  # stop sends, because earlier claims may be lost
            log.warning("claims_not_renewed", tenant=tenant, reason=str(e))
        else:
            self._heard(tenant, asked_at)

    def _heard(self, tenant: str, at: float) -> None:
        """Extend the lease after the server has answered a request of the time `at`."""
        lease, now = self._leases.get(tenant), self._clock.monotonic()
        until = at + _SURE * self._lease_s
        if lease is None or lease.until < now:
            self._leases[tenant] = _Lease(at, until)
            return
        lease.until = max(lease.until, until)
        if until > now:  # `min`, because answers may arrive in another order than their requests
            lease.since = min(lease.since, at)

    async def _run(self, step: str, key: claim_api.ClaimKey, *given: str | bytes | int) -> redis.ScriptReply:
        seen = self._seen.setdefault(key.tenant, redis.SequenceGuard())
        keys = self._keys(key)
        lease_ms = round(self._lease_s * 1000)
        facts = (*seen.known_facts, self._process, step, self._owner, lease_ms, key.envelope_id, *given)
        reply = seen.read(await self._bundles.run(self._script, keys, facts))
        if reply.word not in {b"BACK", b"CLOSED"}:
            self._closed.discard(key.tenant)
            return reply
        known, found = reply.closed.decode(), str(reply.checkpoint)
        if reply.word == b"BACK" and key.tenant not in self._closed:
            self._closed.add(key.tenant)
            log.error("claims_rolled_back", tenant=key.tenant, known=known, found=found)
        raise claim_api.ClaimsRolledBackError(key.tenant, known, found)

    def _frozen(self, key: claim_api.ClaimKey) -> str:
        return f"{redis.tag(self._namespace, key.tenant)}:answer:{key.envelope_id}"

    def _keys(self, key: claim_api.ClaimKey) -> _Keys:
        prefix, id_ = redis.tag(self._namespace, key.tenant), key.envelope_id
        sequence = redis.LedgerKeys.of(self._namespace, key.tenant).meta
        return _Keys(
            sequence, f"{prefix}:claim:{id_}", f"{prefix}:owners", f"{prefix}:last:{id_}", f"{prefix}:open"
        )


@asynccontextmanager
async def _reaching() -> AsyncGenerator[None]:
    try:
        async with within_time():
            yield
    except (RedisError, OSError) as e:
        raise _unavailable(e) from e


def _unavailable(e: Exception) -> claim_api.ClaimStoreUnavailableError:
    error = claim_api.ClaimStoreUnavailableError(f"{type(e).__name__}: {e}")
    error.__cause__ = e
    return error


def _by_attempt(fields: Mapping[bytes, bytes], mark: bytes) -> dict[int, bytes]:
    return {number: fields[mark + str(number).encode()] for number in _numbers(fields, mark)}


def _numbers(names: Iterable[bytes], mark: bytes) -> list[int]:
    """Return the numbers of the attempts that have fields with this mark."""
    return [int(name[2:]) for name in names if name.startswith(mark)]

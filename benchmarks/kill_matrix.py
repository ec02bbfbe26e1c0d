"""What a worker leaves that is killed at any point of a call: calls, bill, books and answers, ours beside DBOS.

Run: python -m benchmarks.kill_matrix [--quick]. Each worker is a process that is ended by SIGKILL at the point, and started again;
the provider is a process of its own that bills each request as it comes in. Ours runs on a real Kafka and Redis, DBOS on SQLite. Exits
with 1 if ours loses an answer, calls for an execution twice, or has billed money outside of its books. `--quick` kills at
each point once instead of five times.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, aclosing, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from agentic_trading.bus.brokers.kafka.admin import create_topics, group_lags, planned_topics
from agentic_trading.bus.brokers.kafka.broker import KafkaBroker
from agentic_trading.bus.codec import envelope_message, read_interaction, reply_head
from agentic_trading.bus.topic import ENVELOPES, Subscription
from agentic_trading.governance.limits import ScopeKind, Window
from agentic_trading.ids import random_id
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import EnvelopeWorkflow, LLMEnvelope, LLMProvider
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.worker.pool import EXECUTIONS_GROUP, GROUP
from benchmarks.bus import Servers, servers_for_all
from benchmarks.kill_matrix_ours import MODEL, WorkerJob, ledger_of, settings_of
from benchmarks.peers.billed import POINTS, TOKENS, Biller, Point
from benchmarks.peers.contender import LEAN, ROOT, UnavailableError, environment, versions
from benchmarks.peers.load import NUSD_PER_TOKEN

BILL_NUSD = TOKENS * NUSD_PER_TOKEN
CAP = 200
WITHIN_S = 40.0
COPIES_WITHIN_S = 0.5
"""How long a reply, or a second copy of it, is waited for once the envelope is acknowledged."""

LOOKS_AGAIN_S = 0.1

SCHEMA = {
    "type": "object",
    "required": ["action", "size"],
    "additionalProperties": False,
    "properties": {"action": {"enum": ["buy", "sell", "wait"]}, "size": {"type": "number"}},
}


@dataclass(frozen=True)
class Outcome:
    """What one killed call came to: requests that were billed, nano-dollars in the books, different answers, and copies."""

    calls: int
    booked_nusd: int
    answers: int
    copies: int
    in_doubt: bool = False

    @property
    def unbooked_nusd(self) -> int:
        """What was billed and is in no book."""
        return max(0, self.calls * BILL_NUSD - self.booked_nusd)


@dataclass
class Column:
    """One way of running a call, and what came of the kills at each point."""

    title: str
    most_calls: int | None = None
    is_judged: bool = False
    outcomes: dict[Point, list[Outcome]] = field(default_factory=dict)
    unavailable: str = ""

    def faults(self) -> list[str]:
        """What must not be, of a column that is judged."""
        found = []
        for point, outcomes in self.outcomes.items():
            for one in outcomes if self.is_judged else ():
                if one.answers != 1:
                    found.append(f"{self.title}, {POINTS[point]}: {one.answers} answers")
                if one.unbooked_nusd:
                    found.append(
                        f"{self.title}, {POINTS[point]}: {one.unbooked_nusd} nUSD outside of the books"
                    )
                if self.most_calls is not None and one.calls > self.most_calls:
                    found.append(f"{self.title}, {POINTS[point]}: {one.calls} calls")
        return found


def ended(process: "subprocess.Popen[str]", *, killed: bool) -> str:
    """Wait for a process; return what it printed. Raises `UnavailableError` if it did not end as it had to."""
    try:
        told, problem = process.communicate(timeout=WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        told, problem = process.communicate()
    if process.returncode != (-signal.SIGKILL if killed else 0):
        last = problem.strip().rpartition("\n")[2]
        raise UnavailableError(f"a worker ended with {process.returncode}: {last:.120}")
    return told


def started(command: Sequence[str | Path]) -> "subprocess.Popen[str]":
    """Start a worker."""
    return subprocess.Popen(  # noqa: S603 - a program of this repository
        command,
        cwd=ROOT,
        env={**os.environ, **LEAN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def serves(worker: "subprocess.Popen[str]") -> None:
    """Wait until a worker of ours serves, or has ended."""
    assert worker.stdout is not None
    worker.stdout.readline()


# --- DBOS -----------------------------------------------------------------------------------------------------


def run_dbos(column: Column, biller: Biller, folder: Path, times: int) -> None:
    """Kill DBOS at each point, `times` each; or say why it cannot be."""
    try:
        python = environment("dbos")
        for point in POINTS:
            column.outcomes[point] = [
                _dbos_killed(python, biller, folder / f"{point}{n}.sqlite", point, f"dbos-{point}-{n}")
                for n in range(times)
            ]
    except UnavailableError as e:
        column.unavailable = e.reason


def _dbos_killed(python: Path, biller: Biller, file: Path, point: Point, name: str) -> Outcome:
    words = [str(python), "-m", "benchmarks.peers.dbos.peer", str(file), str(biller.server_port), name]
    if point == "billed":
        biller.kills.add(name)
    ended(started([*words, point]), killed=True)
    recorded = json.loads(ended(started([*words, ""]), killed=False))
    booked = sum(output["tokens"] for output in recorded) * NUSD_PER_TOKEN
    replies = biller.replied[name]
    return Outcome(biller.billed[name], booked, min(replies, 1), replies - min(replies, 1))


# --- ours -----------------------------------------------------------------------------------------------------


@dataclass
class Desk:
    """Who asks: it publishes envelopes and reads the replies."""

    job: WorkerJob
    biller: Biller
    broker: KafkaBroker
    replies: Subscription
    address: str
    published: Counter[EnvelopeWorkflow] = field(default_factory=Counter)

    async def killed(self, workflow: EnvelopeWorkflow, point: Point, name: str) -> Outcome:
        """Ask, have the worker killed at the point, start it again, and count."""
        if point == "billed":
            self.biller.kills.add(name)
        envelope = envelope_of(workflow, name)
        message = envelope_message(envelope, reply_to=self.address)
        await self.broker.publish(ENVELOPES[workflow], message)
        self.published[workflow] += 1
        await asyncio.to_thread(ended, self._started(point), killed=True)
        worker = self._started("")
        try:
            await self._committed(workflow)
            finals = await self._finals(envelope)
        finally:
            await asyncio.to_thread(serves, worker)  # before, SIGTERM would end it with -15
            worker.terminate()
            await asyncio.to_thread(ended, worker, killed=False)
        booked = await self._booked(name)
        in_doubt = any(each.result.in_doubt for each in finals)
        answers = len({each.interaction_id for each in finals})
        return Outcome(self.biller.billed[name], booked, answers, len(finals) - answers, in_doubt=in_doubt)

    def _started(self, point: str) -> "subprocess.Popen[str]":
        job = replace(self.job, point=point)
        return started([sys.executable, "-m", "benchmarks.kill_matrix_ours", json.dumps(asdict(job))])

    async def _committed(self, workflow: EnvelopeWorkflow) -> None:
        """Wait until the workers' group has acknowledged all that was published; what is not within the time is lost."""
        group = EXECUTIONS_GROUP if workflow is EnvelopeWorkflow.EXECUTION else GROUP
        settings, topic = settings_of(self.job.kafka), ENVELOPES[workflow].name
        with suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                while True:
                    lags = await group_lags(settings, [topic], [group])
                    if sum(each.committed for each in lags) >= self.published[workflow]:
                        return
                    await asyncio.sleep(LOOKS_AGAIN_S)

    async def _finals(self, envelope: LLMEnvelope) -> list[LLMInteraction]:
        """Return the last attempts that came as replies to an envelope, copies too."""
        finals: list[LLMInteraction] = []
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(COPIES_WITHIN_S):
                    message = (await self.replies.take()).message
                if reply_head(message).is_final:
                    interaction = read_interaction(message)
                    if interaction.envelope.envelope_id == envelope.envelope_id:
                        finals.append(interaction)
        return finals

    async def _booked(self, tenant: str) -> int:
        """Return what the ledger has spent for the tenant, with what is in doubt."""
        async with aclosing(ledger_of(self.job.redis, self.job.namespace)) as ledger:
            await ledger.open()
            balances = await ledger.balances(tenant)
        of_all_time = (ScopeKind.TENANT, Window.NONE)
        return sum(each.spent.nusd for each in balances if (each.scope, each.window) == of_all_time)


def envelope_of(workflow: EnvelopeWorkflow, name: str) -> LLMEnvelope:
    """Return the envelope of one call, in a tenant of its own."""
    builder = EnvelopeBuilder().with_provider(LLMProvider.SCRIPTED, MODEL).with_tenant(name)
    builder.with_instructions("Advise.").with_output_schema(SCHEMA).with_agent("adviser-1", "adviser")
    builder.with_budget(max_output_tokens=CAP, thinking_budget=0).with_idempotency_key(name)
    is_execution = workflow is EnvelopeWorkflow.EXECUTION
    return (builder.for_execution() if is_execution else builder.for_analysis()).build()


async def run_ours(
    columns: dict[EnvelopeWorkflow, Column],
    servers: Servers,
    biller: Biller,
    folder: Path,
    times: int,
) -> None:
    """Kill a worker of ours at each point, `times` each, for each workflow."""
    kafka, redis = servers.addresses["Kafka"], servers.addresses["Redis"]
    await create_topics(settings_of(kafka), planned_topics(partitions=2))
    job = WorkerJob(kafka, redis, servers.run, str(folder), biller.server_port)
    address = random_id()
    async with aclosing(KafkaBroker(settings_of(kafka))) as broker:
        desk = Desk(job, biller, broker, await broker.replies(address), address)
        for workflow, column in columns.items():
            for point in POINTS:
                column.outcomes[point] = [
                    await desk.killed(workflow, point, f"{servers.run}-{workflow}-{point}-{n}")
                    for n in range(times)
                ]


# --- the matrix -----------------------------------------------------------------------------------------------


def cell(outcomes: Sequence[Outcome]) -> str:
    """Return calls, bill, books and answers of one point; each figure is the worst of the kills."""
    worst = max(outcomes, key=lambda one: (one.answers == 0, one.unbooked_nusd, one.calls, one.copies))
    answer = "lost" if not worst.answers else "in doubt" if worst.in_doubt else "answered"
    copies = f" x{worst.copies + 1}" if worst.copies else ""
    return f"{worst.calls} / {_usd(worst.calls * BILL_NUSD)} / {_usd(worst.booked_nusd)} / {answer}{copies}"


def _usd(nusd: int) -> str:
    return f"{nusd / 10**9:.3f}"


def print_matrix(columns: Sequence[Column]) -> None:
    """Print a row a point, a column a contender."""
    print(f"\n{'killed':<42}" + "".join(f"{column.title:<40}" for column in columns))
    print(f"{'':<42}" + f"{'calls / bill / books / answer':<40}" * len(columns))
    for point, told in POINTS.items():
        cells = [
            cell(column.outcomes[point]) if point in column.outcomes else column.unavailable[:38]
            for column in columns
        ]
        print(f"{told:<42}" + "".join(f"{each:<40}" for each in cells))


def main() -> int:
    """Print the matrix; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="each point once")
    times = 1 if arguments.parse_args().quick else 5
    ours = {
        EnvelopeWorkflow.ANALYSIS: Column("ours, analysis", is_judged=True),
        EnvelopeWorkflow.EXECUTION: Column("ours, execution", most_calls=1, is_judged=True),
    }
    dbos = Column(f"DBOS ({versions('dbos')})")
    biller = Biller()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = stack.enter_context(servers_for_all())
        if servers.unavailable:
            print("; ".join(servers.unavailable.values()), file=sys.stderr)
            return 1
        stack.enter_context(biller.serving())
        began = time.perf_counter()
        run_dbos(dbos, biller, folder, times)
        asyncio.run(run_ours(ours, servers, biller, folder, times))
        took = time.perf_counter() - began
    columns = [*ours.values(), dbos]
    print(
        f"{times} kills at each point, {took:.0f} s; a call is billed {_usd(BILL_NUSD)} dollars when it comes in, and up to "
        f"{_usd(CAP * NUSD_PER_TOKEN)} are reserved for it.\nOurs: Kafka, Redis (appendfsync always), a log in a folder; DBOS: "
        f"SQLite. {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}."
    )
    print_matrix(columns)
    found = [fault for column in columns for fault in column.faults()]
    print("\nOurs: " + ("; ".join(found) + ": DOES NOT HOLD" if found else "all promises hold"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

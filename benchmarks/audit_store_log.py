"""The log of `audit_store.py`: decision chains of a trading desk, written by the package's own writer.

A record is made from a template: the bytes of a real record whose values are marks. The first records are read by the
package and must be written again in the same bytes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

from agentic_trading.canonical import canonical_bytes, utc_text
from agentic_trading.clock import SimClock
from agentic_trading.llm import EnvelopeBuilder, EnvelopeWorkflow, LLMEnvelope, LLMInteraction, LLMResult
from agentic_trading.llm.envelope import LLMProvider
from agentic_trading.llm.errors import FailureKind, FailureReason
from agentic_trading.llm.interaction import interaction_id
from agentic_trading.llm.result import AttemptTrace, Stage
from agentic_trading.llm.stores import record_codec
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from benchmarks.peers.question import INSTRUCTIONS, SCHEMA

BEGAN: Final = datetime(2026, 5, 25, tzinfo=UTC)
DAYS: Final = 41
AT_ONCE: Final = 64
"""Decision chains in progress at a time."""
LONGEST_CHAIN: Final = 15
CHECKED: Final = 200
"""Records at the beginning of a log that are compared with what the package writes."""
WRITTEN_AT_ONCE: Final = 512
MOST_TRACES: Final = 1_000
MOST_TEXTS: Final = 10_000
"""Different answers in a log, and as many different pieces of evidence."""
ENVELOPE_TAG: Final = b"agentic/envelope/v1\0"
"""The tag before the bytes of an envelope in its checksum."""

MODELS: Final = (
    ("anthropic", "claude-sonnet-4-5", 30, 6.9),
    ("anthropic", "claude-haiku-4-5", 25, 6.1),
    ("openai", "gpt-5-mini", 20, 6.4),
    ("openai", "gpt-5", 10, 7.6),
    ("local", "smollm2-135m", 10, 5.0),
    ("openrouter", "qwen3-32b", 5, 6.8),
)
"""Provider, model, share of the calls in percent, and the logarithm of the median latency in milliseconds."""
LOCAL: Final = 4
"""The place of the model that costs nothing."""
WORKFLOWS: Final = (
    (EnvelopeWorkflow.ANALYSIS, "cmt_analyst"),
    (EnvelopeWorkflow.PLANNING, "planner"),
    (EnvelopeWorkflow.EXECUTION, "executor"),
)
TENANTS: Final = {"default": 80, "fund-b": 15, "fund-c": 5}
FAILURES: Final = (
    FailureKind.BUDGET_EXHAUSTED,
    FailureKind.RATE_LIMIT,
    FailureKind.TIMEOUT,
    FailureKind.PARSING_ERROR,
    FailureKind.REFUSAL,
    FailureKind.TRUNCATED,
)
SUBJECTS: Final = [
    f"{coin}USDT" for coin in ("BTC", "ETH", "SOL", "XRP", "ADA", "DOGE", "LINK", "AVAX", "DOT", "LTC")
]
_TEXT: Final = (
    "trend range support resistance momentum volume breakout pullback divergence liquidity imbalance funding basis "
    "volatility squeeze expansion rejection retest accumulation distribution higher lower close open daily hourly swing "
    "high low average band channel slope flat rising falling strong weak bullish bearish neutral long short hold reduce "
    "risk reward stop target entry size exposure correlation market price level order block gap candle wick body session "
    "london asia weekend carry spread depth bid ask taker maker flow delta crowded absorption exhaustion continuation "
    "reversal failure auction value area point control because although while after until before against above below "
    "near between under over within despite given since"
)
WORDS: Final = _TEXT.split()


@dataclass(frozen=True)
class WrittenLog:
    """A log of `interactions` attempts in `folder`, and facts about it to check answers with.

    `traces` has the ids and the number of records of some decision chains, from all parts of the log.
    """

    folder: str
    interactions: int
    lines: int
    bytes: int
    cost_nusd: int
    traces: Sequence[tuple[str, int]]

    @property
    def path(self) -> Path:
        """The active segment."""
        return Path(self.folder) / "interactions.jsonl"


class Template:
    """The bytes of a record with marks, in which each mark is replaced by a value."""

    def __init__(self, raw: bytes, marks: Mapping[bytes, str]) -> None:
        pattern = re.compile(b"|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))
        self._names = [marks[found] for found in pattern.findall(raw)]
        self._format = pattern.sub(b"%b", raw.replace(b"%", b"%%"))
        if missing := set(marks.values()) - set(self._names):
            raise ValueError(f"marks are not in the record: {', '.join(sorted(missing))}")

    def filled(self, values: Mapping[str, bytes]) -> bytes:
        """Return the bytes with these values."""
        return self._format % tuple([values[name] for name in self._names])


@dataclass(frozen=True)
class Made:
    """A record, with what a store that is asked for it needs."""

    raw: bytes
    key: str
    time: datetime


@dataclass
class _Chain:
    trace: str
    tenant: str
    subject: str
    agent: int
    calls_left: int
    causes: list[str]
    calls: int = 0
    records: int = 1


_TIME = datetime(2001, 1, 1, 1, 1, 1, 1, tzinfo=UTC)
_DEADLINE = _TIME + timedelta(minutes=5)
_ANSWER_MARK = {"answer": "@parsed@"}
_EVIDENCE_MARK = {"values": "@evidence@"}
_ENVELOPE_MARKS: Final = {
    f"@{name}@".encode(): name
    for name in ("agent", "trace", "cause", "envelope", "subject", "tenant", "price")
} | {
    b"2001-01-01T01:01:01.000001Z": "time",
    b"2001-01-01T01:06:01.000001Z": "deadline",
    canonical_bytes(_EVIDENCE_MARK): "evidence",
}
_RESULT_MARKS: Final = {
    b"@result@": "result",
    b"@envelope@": "envelope",
    b"2001-01-01T01:01:01.000001Z": "time",
    b"770000001": "input_tokens",
    b"770000002": "output_tokens",
    b"770000003": "cost_nusd",
    b"0.770000003": "cost_usd",
    b"77.125": "latency_ms",
}
_ACCEPTED_MARKS: Final = {
    b"@raw@": "raw",
    canonical_bytes(_ANSWER_MARK): "parsed",
    b"@request_id@": "request_id",
}
_FAILED_MARKS: Final = {b'"server_error"': "failure", b"@why@": "why"}


def _envelope(workflow: EnvelopeWorkflow, agent_type: str, provider: str, model: str) -> LLMEnvelope:
    builder = EnvelopeBuilder(clock=SimClock(_TIME), ids=lambda: "@envelope@")
    for_workflow = {
        EnvelopeWorkflow.ANALYSIS: builder.for_analysis,
        EnvelopeWorkflow.PLANNING: builder.for_planning,
        EnvelopeWorkflow.EXECUTION: builder.for_execution,
    }
    context = {
        "symbol": "@subject@",
        "last_close": "@price@",
        "decision_timeframe": "1h",
        "timeframes": ["15m", "1h", "4h", "1d"],
        "limits": {"max_distance_percent": 50, "max_distance_atr": 10},
        "prompted_by": {"detail": "never assessed", "kind": "thesis_due"},
    }
    return (
        for_workflow[workflow]()
        .with_instructions(f"{INSTRUCTIONS} {' '.join(WORDS[:20])}.", prompt_version="acb79c4e9c28948c")
        .with_provider(LLMProvider(provider), model)
        .with_context(context, as_of=_TIME)
        .with_output_schema(SCHEMA)
        .with_agent("@agent@", agent_type)
        .with_tenant("@tenant@")
        .with_subject("@subject@", step="1h")
        .with_trace("@trace@", "@cause@")
        .with_as_of(_TIME)
        .with_deadline(_DEADLINE)
        .add_evidence("indicators", _EVIDENCE_MARK, available_at=_TIME)
        .build()
    )


def _result(provider: str, model: str, *, is_accepted: bool) -> LLMResult:
    fields: dict[str, Any] = {
        "result_id": "@result@",
        "envelope_id": "@envelope@",
        "timestamp": _TIME,
        "latency_ms": 77.125,
        "input_tokens": 770000001,
        "output_tokens": 770000002,
        "cost_nusd": 770000003,
        "price_book": "list-2026-11-21",
        "provider": provider,
        "model": model,
        "model_requested": model,
        "dispatched_at": _TIME,
        "finished_at": _TIME,
        "next_step": "final",
    }
    if is_accepted:
        fields |= {
            "raw_output": "@raw@",
            "parsed_output": _ANSWER_MARK,
            "validation_passed": True,
            "stop_reason": "end_turn",
            "provider_request_id": "req_@request_id@",
            "provider_response_id": "msg_@request_id@",
            "reading": AttemptTrace(
                parser="StructuredLogProbsParser",
                transport="native_schema",
                verdict=Stage.DONE,
                decode="strict",
            ),
        }
    else:
        why = FailureReason(category=FailureKind.SERVER_ERROR, description="@why@")
        fields |= {"success": False, "failure": why, "error": "@why@"}
    return LLMResult(**fields)


class Records:
    """Records of `interactions` calls, with the events around them, in the order of a log."""

    def __init__(self, interactions: int, seed: int = 7, days: float = DAYS) -> None:
        self._interactions = interactions
        self._random = Random(seed)  # noqa: S311 - data of a benchmark
        self.cost_nusd = 0
        self.traces: list[tuple[str, int]] = []
        texts = min(MOST_TEXTS, interactions)
        self._sentences = [self._sentence() for _ in range(2 * texts)]
        self._evidence = [canonical_bytes(self._indicators()) for _ in range(texts)]
        self._answers = [self._answer() for _ in range(texts)]
        self._envelopes: dict[tuple[int, int], Template] = {}
        self._results: dict[tuple[int, bool], Template] = {}
        self._step_s = days * 86_400 / interactions

    def __iter__(self) -> Iterator[Made]:
        """Yield the records."""
        active: list[_Chain] = []
        for number in range(self._interactions):
            time = BEGAN + timedelta(seconds=number * self._step_s, microseconds=1)
            if len(active) < AT_ONCE:
                chain, made = self._begin(time)
                active.append(chain)
                yield made
            place = self._random.randrange(len(active))
            yield from self._call(active[place], time)
            if not active[place].calls_left:
                del active[place]

    def _begin(self, time: datetime) -> tuple[_Chain, Made]:
        random = self._random
        tenant = random.choices([*TENANTS], weights=[*TENANTS.values()])[0]
        subject = random.choice(SUBJECTS)
        trace = self._id()
        bar = {"close": self._price(), "symbol": subject, "timeframe": "1h", "volume": self._price()}
        body = {"bar": bar, "detail": "never assessed", "kind": "thesis_due", "symbol": subject}
        event, made = self._event("analysis.triggered", trace, "", tenant, time, body)
        calls = random.randint(1, LONGEST_CHAIN)
        return _Chain(trace, tenant, subject, random.randrange(8), calls, [event]), made

    def _call(self, chain: _Chain, time: datetime) -> Iterator[Made]:
        """Yield an attempt, and the events at the end of its chain."""
        random = self._random
        cause = chain.causes[-1] if random.random() < 0.6 else random.choice(chain.causes)
        is_accepted = random.random() > 0.03
        made, record_id = self._interaction(chain, cause, time, is_accepted=is_accepted)
        yield made
        chain.causes.append(record_id)
        chain.calls += 1
        chain.records += 1
        chain.calls_left -= 1
        if chain.calls_left:
            return
        verdict = random.choice(("long", "short", "stand_aside")) if is_accepted else "stand_aside"
        kinds = ["analysis.assessed"]
        if verdict != "stand_aside":
            kinds += ["intent.approved", "order.submitted", "order.filled"]
        cause = record_id
        for kind in kinds:
            body = {"symbol": chain.subject, "verdict": verdict, "reason": random.choice(self._sentences)}
            cause, event = self._event(kind, chain.trace, cause, chain.tenant, time, body)
            chain.records += 1
            yield event
        self.traces.append((chain.trace, chain.records))

    def _interaction(
        self, chain: _Chain, cause: str, time: datetime, *, is_accepted: bool
    ) -> tuple[Made, str]:
        random = self._random
        model = random.choices(range(len(MODELS)), weights=[each[2] for each in MODELS])[0]
        workflow = min(2, chain.calls // 5)
        input_tokens, output_tokens = random.randrange(900, 4_000), random.randrange(100, 900)
        cost_nusd = 0 if model == LOCAL else input_tokens * 3_000 + output_tokens * 15_000
        self.cost_nusd += cost_nusd
        raw, parsed, output_hash = random.choice(self._answers)
        envelope_id, at = self._id(), utc_text(time).encode()
        values = {
            "agent": f"{WORKFLOWS[workflow][1]}-{chain.agent:02}".encode(),
            "trace": chain.trace.encode(),
            "cause": cause.encode(),
            "envelope": envelope_id.encode(),
            "subject": chain.subject.encode(),
            "tenant": chain.tenant.encode(),
            "price": self._price().encode(),
            "time": at,
            "deadline": utc_text(time + timedelta(minutes=5)).encode(),
            "evidence": random.choice(self._evidence),
            "request_hash": b"rk1:%064x" % random.getrandbits(256),
            "result": self._id().encode(),
            "input_tokens": b"%d" % input_tokens,
            "output_tokens": b"%d" % output_tokens,
            "cost_nusd": b"%d" % cost_nusd,
            "cost_usd": orjson.dumps(cost_nusd / 1e9),
            "latency_ms": orjson.dumps(round(random.lognormvariate(MODELS[model][3], 0.6), 3)),
            "raw": raw,
            "parsed": parsed,
            "output_hash": output_hash,
            "request_id": b"%016x" % random.getrandbits(64),
            "failure": b'"%b"' % random.choice(FAILURES).encode(),
            "why": random.choice(self._sentences).encode(),
        }
        body = self._envelope(workflow, model).filled(values)
        checksum = sha256(ENVELOPE_TAG + body + b"}").hexdigest()[:16].encode()
        record_id = interaction_id(envelope_id, 1, chain.tenant)
        line = b'{"interaction_id":"%b","envelope":%b,"envelope_hash":"%b"},"result":%b,"stored_at":"%b"}' % (
            record_id.encode(), body, checksum, self._result(model, is_accepted=is_accepted).filled(values), at
        )  # fmt: skip
        return Made(line, f"interaction:{record_id}", time), record_id

    def _event(
        self, kind: str, trace: str, cause: str, tenant: str, time: datetime, body: Mapping[str, Any]
    ) -> tuple[str, Made]:
        event_id = self._id()
        at = utc_text(time)
        fields = {
            "as_of": at, "body": body, "causation_id": cause, "id": event_id, "kind": kind, "tenant_id": tenant,
            "time": at, "trace_id": trace,
        }  # fmt: skip
        return event_id, Made(canonical_bytes(fields), f"event:{event_id}", time)

    def _envelope(self, workflow: int, model: int) -> Template:
        """Return the template of an envelope without its checksum."""
        if (workflow, model) not in self._envelopes:
            provider, name, *_ = MODELS[model]
            made = _envelope(*WORKFLOWS[workflow], provider, name)
            raw, _, _ = made.wire.rpartition(b',"envelope_hash":')
            marks = {**_ENVELOPE_MARKS, made.request_hash.encode(): "request_hash"}
            self._envelopes[workflow, model] = Template(raw, marks)
        return self._envelopes[workflow, model]

    def _result(self, model: int, *, is_accepted: bool) -> Template:
        if (model, is_accepted) not in self._results:
            provider, name, *_ = MODELS[model]
            made = _result(provider, name, is_accepted=is_accepted)
            marks = _RESULT_MARKS | (_ACCEPTED_MARKS if is_accepted else _FAILED_MARKS)
            if is_accepted:
                marks = {**marks, made.output_hash.encode(): "output_hash"}
            self._results[model, is_accepted] = Template(made.wire, marks)
        return self._results[model, is_accepted]

    def _id(self) -> str:
        text = f"{self._random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"

    def _price(self) -> str:
        return f"{self._random.uniform(1, 90_000):.2f}"

    def _sentence(self) -> str:
        words = self._random.choices(WORDS, k=self._random.randint(8, 13))
        words.insert(self._random.randrange(len(words)), self._price())
        return " ".join(words)

    def _indicators(self) -> dict[str, Any]:
        random = self._random

        def numbers(low: float, high: float, digits: int, count: int) -> list[float]:
            return [round(random.uniform(low, high), digits) for _ in range(count)]

        return {
            "rsi_14": numbers(10, 90, 2, 5),
            "atr_14": numbers(50, 500, 4, 5),
            "ema_21": numbers(20_000, 60_000, 2, 5),
            "levels": numbers(20_000, 60_000, 2, 8),
            "volume_z": numbers(-3, 3, 3, 5),
        }

    def _answer(self) -> tuple[bytes, bytes, bytes]:
        """Return an answer as it is escaped in a text, as a JSON object, and the hash of the text."""
        random = self._random
        findings = [
            {"text": random.choice(self._sentences), "evidence_ids": [f"E{random.randint(1, 3)}"]}
            for _ in range(4)
        ]
        answer = {
            "rationale": " ".join(random.choices(self._sentences, k=3)),
            "direction": random.choice(("long", "short", "none")),
            "confidence": round(random.random(), 2) or 0.5,
            "score": random.randint(-5, 5),
            "stop": self._price(),
            "findings": findings,
        }
        text = orjson.dumps(answer).decode()
        made = LLMResult(envelope_id="", raw_output=text, parsed_output=answer)
        parsed = made.wire.rpartition(b',"parsed_output":')[2][:-1]
        return orjson.dumps(text)[1:-1], parsed, made.output_hash.encode()


def write_log(folder: Path, interactions: int, segment_bytes: int) -> WrittenLog:
    """Write a log of so many attempts into `folder`, or return the one that is there.

    Raises:
        ValueError: If a record is not in the bytes that the package writes, or the folder has another log.

    """
    about = folder / "log.json"
    if about.exists():
        written = WrittenLog(**json.loads(about.read_text(encoding="utf-8")) | {"folder": str(folder)})
        if written.interactions != interactions:
            raise ValueError(f"{folder} has a log of {written.interactions:,} attempts. Name another folder")
        return written
    folder.mkdir(parents=True)
    records = Records(interactions)
    log = LogFile(folder / "interactions.jsonl", Disk(), segment_bytes=segment_bytes)
    lines = size = 0
    group: list[tuple[record_codec.Identity, bytes]] = []
    for made in records:
        if lines + len(group) < CHECKED:
            check(made.raw)
        # The keys are new, so that the facts, which are only compared, are not needed.
        group.append((record_codec.Identity(made.key, bytes(16), made.time), made.raw))
        if len(group) == WRITTEN_AT_ONCE:
            size += log.append(group, sync=False).bytes_written
            lines += len(group)
            group = []
    size += log.append(group, sync=True).bytes_written
    log.close()
    step = max(1, len(records.traces) // MOST_TRACES)
    written = WrittenLog(
        str(folder), interactions, lines + len(group), size, records.cost_nusd, records.traces[::step]
    )
    about.write_text(json.dumps(asdict(written)), encoding="utf-8")
    return written


def check(raw: bytes) -> None:
    """Raise `ValueError` unless the package reads this record and writes it in the same bytes."""
    record = record_codec.record_of(raw)
    # Made again from its fields, because a record that was read keeps its bytes.
    again = type(record).model_validate(record.model_dump())
    if again.wire != raw:
        raise ValueError(f"the package writes this record in other bytes: {raw[:200]!r}")
    if isinstance(record, LLMInteraction) and not record.envelope.is_intact:
        raise ValueError(f"the checksum of this envelope is wrong: {raw[:200]!r}")

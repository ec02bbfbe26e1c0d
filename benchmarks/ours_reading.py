"""Our side of reading: what the engine makes of a text, what the bare floor makes of it, and what its loop bills."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from decimal import Decimal
from typing import Any, Never

import jsonschema_rs
import orjson
import structlog

from agentic_trading.canonical import canonical_bytes, exact_bytes
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.llm.builder import EnvelopeBuilder
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.provider import ModelRequest, ModelResponse, Providers
from agentic_trading.llm.result import Usage
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.structured import Accepted, read, read_json
from agentic_trading.structured.decode import decode
from agentic_trading.structured.validation import compile_schema, find_violations
from agentic_trading.worker.recorder import Recorder
from agentic_trading.worker.runner import CallRunner, RunnerDependencies
from benchmarks.ours import CAPABILITIES, CLOCK, LIMITS, PRICES
from benchmarks.peers.failures import QUESTION, Answers, Billed, answers_to, told
from benchmarks.peers.order import SCHEMAS
from benchmarks.peers.reader import Way, answer_readings

Reader = Callable[[str], Any]
USAGE = Usage(input_tokens=100, output_tokens=50)


class RefusedError(Exception):
    """What was read does not fit, or was not read at all."""


def engine(workflow: EnvelopeWorkflow) -> Way:
    """Return the whole of `read` under a workflow's preset, as the gateway calls it."""
    policy = output_policy(workflow)

    def way(schema: str) -> Reader:
        wanted = SCHEMAS[schema]
        spelled = canonical_bytes(wanted)

        def once(text: str) -> Any:
            outcome = read(
                ModelResponse(text, "end_turn", USAGE, "none"), wanted, policy, schema_json=spelled
            )
            if isinstance(outcome, Accepted):
                return outcome.value
            raise RefusedError(outcome.failure.description)

        return once

    return way


def lossless(schema: str) -> Reader:
    """`read_json` and the check, without the engine."""
    usable = compile_schema(canonical_bytes(SCHEMAS[schema]))

    def once(text: str) -> Any:
        return _checked(read_json(text, mode="lossless"), usable)

    return once


def strict(schema: str) -> Reader:
    """Our strict decoder and our check: the part of `read` that nobody can save."""
    usable = compile_schema(canonical_bytes(SCHEMAS[schema]))

    def once(text: str) -> Any:
        decoded = decode(text)
        return _checked(decoded.value, usable, decoded.rounded)

    return once


def _checked(value: Any, usable: Any, rounded: Any = None) -> Any:
    if find_violations(value, usable, rounded):
        raise RefusedError("breaks its schema")
    return value


def safe_floor(schema: str) -> Reader:
    """Return the bare safe decode and the bare validator: no size, depth or surrogate is checked, nothing is said."""
    validator = jsonschema_rs.validator_for(SCHEMAS[schema], validate_formats=True)

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise RefusedError("a key twice")
        return found

    def constant(name: str) -> Never:
        raise RefusedError(name)

    def once(text: str) -> Any:
        value = json.loads(text, object_pairs_hook=members, parse_float=Decimal, parse_constant=constant)
        validator.validate(value)
        return value

    return once


def bare(loads: Callable[[str], Any]) -> Way:
    """Return a decoder as it comes, and the bare validator."""

    def way(schema: str) -> Reader:
        validator = jsonschema_rs.validator_for(SCHEMAS[schema], validate_formats=True)

        def once(text: str) -> Any:
            value = loads(text)
            validator.validate(value)
            return value

        return once

    return way


class Scripted:
    """A provider that gives the answers of a failure; it is asked, and billed, as often as the loop wants."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the next answer."""
        answer = self._answers.next()
        return ModelResponse(answer.text, answer.stop_reason, USAGE, request.envelope.model)

    async def count_tokens(self, request: ModelRequest) -> int | None:  # noqa: ARG002 - the port's signature
        """Return None: it does not count."""
        return None

    async def aclose(self) -> None:
        """Do nothing: there is nothing to give back."""


async def _billed(kind: str) -> Billed:
    answers = answers_to(kind)
    gate = Gate(
        ledger=MemoryLedger(LIMITS), prices=PRICES, capabilities=CAPABILITIES, clock=CLOCK, mode="live"
    )
    parts = RunnerDependencies(
        gate=gate,
        providers=Providers.every(Scripted(answers)),
        recorder=Recorder(MemoryInteractionStore()),
        capabilities=CAPABILITIES,
        clock=CLOCK,
        checks={},
    )
    envelope = (
        EnvelopeBuilder()
        .for_planning()
        .with_instructions(QUESTION)
        .with_output_schema(SCHEMAS["ticket"])
        .with_agent("planner-1", "planner")
        .build()
    )
    result = (await CallRunner(parts).run(envelope)).result
    if result.failure is not None:
        return Billed(answers.given, result.failure.category)
    return told(answers.given, result.parsed_output)


def billed(request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a planner's question where the first answer fails in the way of `kind`; it may read three answers."""
    return asdict(asyncio.run(_billed(request["kind"])))


WAYS: dict[str, Way] = {
    "read_json": lossless,
    "analysis": engine(EnvelopeWorkflow.ANALYSIS),
    "planning": engine(EnvelopeWorkflow.PLANNING),
    "strict": strict,
    "safe floor": safe_floor,
    "json": bare(json.loads),
    "orjson": bare(orjson.loads),
}


def main() -> None:
    """Answer requests, with logs as a program that uses this package would set them."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR), cache_logger_on_first_use=True
    )
    answer_readings(WAYS, lambda value: exact_bytes(value).decode(), more=billed)


if __name__ == "__main__":
    main()

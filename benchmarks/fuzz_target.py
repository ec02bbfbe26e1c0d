"""What must hold for any text that reading is given: one check, whoever makes up the texts."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from decimal import Decimal, DecimalTuple, InvalidOperation
from functools import partial
from typing import Any, NamedTuple

import structlog

from agentic_trading.canonical import canonical_bytes
from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.limits import OutputPolicy
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.structured import Accepted, ParserException, Rejected, read, read_json, validate
from benchmarks.peers.order import ORDER, SCHEMAS
from benchmarks.peers.reader import same
from benchmarks.peers.slips import SLIPS

S_PER_BYTE = 20e-6
S_AT_LEAST = 50e-3
"""No text may take longer than these two together; reading takes about a hundredth of that."""


class _Way(NamedTuple):
    policy: OutputPolicy
    schema: dict[str, Any]
    schema_json: bytes


OPEN: dict[str, Any] = {"$id": "open.v1", "type": "object"}
_READ = (
    (EnvelopeWorkflow.EXECUTION, SCHEMAS["ticket"]),
    (EnvelopeWorkflow.PLANNING, SCHEMAS["ticket"]),
    (EnvelopeWorkflow.ANALYSIS, OPEN),
    (EnvelopeWorkflow.ANALYSIS, SCHEMAS["typical"]),
)
_WAYS = [_Way(output_policy(workflow), schema, canonical_bytes(schema)) for workflow, schema in _READ]
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_USAGE = Usage(input_tokens=100, output_tokens=50)


class BrokenPromiseError(AssertionError):
    """A text for which something does not hold."""


@dataclass
class Tally:
    """What was tried and what came of it: without accepted texts little would have been tried."""

    inputs: int = 0
    strict: int = 0
    lossless: int = 0
    read: int = 0
    slowest_us_a_byte: float = 0.0

    def spelled(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))


def prepare() -> None:
    """Keep logs and all that is done only once out of what is measured."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=True
    )
    for seed in seeds():
        check(seed, Tally())


def seeds() -> Iterator[bytes]:
    """Return texts to start from: right ones, those with slips, those that mean harm."""
    texts = [ORDER[:600], *(text for kind in SLIPS.values() for text in kind)]
    texts += [
        '{"a":1,"a":2}', '{"a":NaN}', '{"a":1e999}', '{"a":1,000}', '{"a":"\\ud800"}', '{"a":0.1', '{"a":tru',
        '{"x":{"a":1},"veto":tr', '{"a":1} or {"a":2}', '[1] {"a":1}', '{"a":1 "b":2}', "{'a': 'it's'}",
        '{"qty":"0.25"}', '"{\\"a\\":1}"', "[[[[", '{"a":', "```", "/*", "//", "\u201c", "\\\\", "`", "{a:1,b:[2,],}",
        '{"a":-0.0e-5,"b":12345678901234567890.5}', "{1: 2}", '{"a": "b" // "c":\n}', "",
    ]  # fmt: skip
    yield from (text.encode("utf-8", "surrogatepass") for text in texts)


def check(data: bytes, tally: Tally) -> None:
    """Read `data` in every way; raises `BrokenPromiseError` or whatever else should not have been raised."""
    text = data.decode("utf-8", "surrogateescape")
    tally.inputs += 1
    strict = _timed(lambda: _read_json(text, "strict"), text, tally)
    lossless = _timed(lambda: _read_json(text, "lossless"), text, tally)
    if strict is not None:
        tally.strict += 1
        if lossless is None or not same(strict[0], lossless[0]):
            raise BrokenPromiseError(f"strict and lossless differ on {text!r}")
    if lossless is not None:
        tally.lossless += 1
        _check_numbers(lossless[0], text)
    for way in _WAYS:
        outcome = _timed(partial(_read, text, way), text, tally)
        if isinstance(outcome, Accepted):
            tally.read += 1
            _check_numbers(outcome.value, text)
            if broken := validate(outcome.value, way.schema):
                raise BrokenPromiseError(f"accepted what breaks its schema ({broken[0].message}): {text!r}")


def _read(text: str, way: _Way) -> Accepted | Rejected:
    response = ModelResponse(text, "end_turn", _USAGE, "none")
    return read(response, way.schema, way.policy, schema_json=way.schema_json)


def _read_json(text: str, mode: Any) -> tuple[Any] | None:
    try:
        return (read_json(text, mode=mode),)
    except ParserException:
        return None


def _timed(call: Callable[[], Any], text: str, tally: Tally) -> Any:
    result, took_s = _once(call)
    size = len(text) + 1
    if took_s / size * 1e6 > tally.slowest_us_a_byte:
        took_s = min(
            took_s, *(_once(call)[1] for _ in range(2))
        )  # the first may have paid for the garbage of others
    if took_s > S_AT_LEAST + S_PER_BYTE * size:
        raise BrokenPromiseError(f"{took_s:.2f} s for {size - 1} characters: {text[:2_000]!r}")
    if size > 100:  # below, a clock tick is more than the work
        tally.slowest_us_a_byte = max(tally.slowest_us_a_byte, took_s / size * 1e6)
    return result


def _once(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    return call(), time.process_time() - start


def _check_numbers(value: Any, text: str) -> None:
    written = set(_written(text)) if value else set()
    for number in _numbers(value):
        if number and Decimal(number).as_tuple() not in written:
            raise BrokenPromiseError(f"{number} does not stand in {text!r}")


def _written(text: str) -> Iterator[DecimalTuple]:
    """Yield the numbers in a text. An exponent that no `Decimal` has is in no value that was read."""
    for token in _NUMBER.findall(text):
        with suppress(InvalidOperation):
            yield Decimal(token).as_tuple()


def _numbers(value: Any) -> Iterator[int | Decimal]:
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, int | Decimal) and not isinstance(node, bool):
            yield node

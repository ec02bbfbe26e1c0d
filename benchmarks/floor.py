"""What no gateway of this contract can save: the same bytes spelled, read, hashed and checked, and nothing else.

No ids, clock, rules, money, time limit, retry, parser, record or log is in it, and no validated object.
"""

import json
import time
from decimal import Decimal
from hashlib import sha256
from typing import Any

import jsonschema_rs
import orjson

from benchmarks.peers.question import ANSWER, CONTEXT, EVIDENCE, INSTRUCTIONS, SCHEMA

REFERENCE_US = 38
"""What it costs on a quiet machine of the reference figures; "norm." is scaled to it."""

_PARTS = [CONTEXT, SCHEMA, *(content for _, content in EVIDENCE)]
_FIELDS = {f"field_{number:02}": "about what stands in one" for number in range(36)}
_VALIDATOR = jsonschema_rs.validator_for(SCHEMA, validate_formats=True)


async def call() -> Any:
    """Do the work of one call; return the parsed answer."""
    parts = []
    for part in _PARTS:
        spelled = orjson.dumps(part, option=orjson.OPT_SORT_KEYS)
        orjson.loads(spelled)  # what is kept is apart from the caller's
        parts.append(orjson.Fragment(spelled))
    request_hash = sha256(orjson.dumps({"instructions": INSTRUCTIONS, "parts": parts})).hexdigest()
    envelope = orjson.dumps(
        {**_FIELDS, "instructions": INSTRUCTIONS, "parts": parts, "request_hash": request_hash},
        option=orjson.OPT_SORT_KEYS,
    )
    checksum = sha256(envelope).hexdigest()
    parsed = json.loads(ANSWER, parse_float=Decimal)
    _VALIDATOR.validate(parsed)
    answer = orjson.dumps(parsed, default=float)
    result = orjson.dumps({**_FIELDS, "raw": ANSWER, "parsed": orjson.Fragment(answer), "checksum": checksum})
    line = b'{"envelope":%b,"result":%b}' % (envelope, result)
    sha256(line).hexdigest()
    return parsed


async def cpu_us(calls: int = 400) -> float:
    """Return the CPU microseconds that it takes in this process now."""
    begin = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - begin) / calls * 1e6

"""The side that reads: texts are asked for on standard input, what came of them is told on standard output.

It needs nothing but the standard library: every contender's environment runs it. A request is one line of JSON:
`{"way", "schema", "texts"}` is answered with a list of what each text was read as (JSON in a string, or null where it was
refused); `{"way", "schema", "time", "count"}` with what reading the text named by `time` takes.
"""

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from benchmarks.peers.order import EXPECTED, TEXTS

Way = Callable[[str], Callable[[str], Any]]
"""Takes the name of a schema and gives a reader: a text in, a value out, or an exception."""


@dataclass(frozen=True)
class Timed:
    """What reading one text took: CPU microseconds, and the share of readings that gave the order that was meant."""

    cpu_us: float
    right: float


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are one and the same; numbers by value, Decimal beside float as float, true is not 1."""
    if isinstance(one, Decimal) and isinstance(other, float):
        return float(one) == other
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def told(read: Callable[[str], Any], text: str, spell: Callable[[Any], str]) -> str | None:
    """Return what `text` is read as, spelled; None where it is refused, with whatever exception."""
    try:
        return spell(read(text))
    except Exception:  # noqa: BLE001 - every library refuses with exceptions of its own
        return None


def timed(read: Callable[[str], Any], text: str, count: int, plain: Callable[[Any], Any]) -> Timed:
    """Read `text` `count` times; a refusal takes its time, too. `plain` gives the value that was read."""

    def once() -> Any:
        try:
            return read(text)
        except Exception:  # noqa: BLE001 - every library refuses with exceptions of its own
            return None

    right = 0.0
    value = once()
    if value is not None:
        right = float(same(plain(value), EXPECTED))
    gc.collect()
    start = time.process_time()
    for _ in range(count):
        once()
    return Timed((time.process_time() - start) / count * 1e6, right)


def answer_readings(
    ways: Mapping[str, Way],
    spell: Callable[[Any], str] = json.dumps,
    plain: Callable[[Any], Any] = lambda value: value,
    more: Callable[[Mapping[str, Any]], Any] | None = None,
) -> None:
    """Answer requests until the input ends; `more` answers those that name no way."""
    for line in sys.stdin:
        request = json.loads(line)
        if more is not None and "way" not in request:
            print(json.dumps(more(request)), flush=True)
            continue
        read = ways[request["way"]](request["schema"])
        if "texts" in request:
            print(json.dumps([told(read, text, spell) for text in request["texts"]]), flush=True)
        else:
            took = timed(read, TEXTS[request["time"]], request["count"], plain)
            print(json.dumps(asdict(took)), flush=True)

"""Who reads a damaged order as another one: every cut, every lost character, and what is mended beside it.

Run: python benchmarks/safety.py [--quick]. Exits with 1 if one of our ways gives a value that was not written: from a cut
order any, from one that lost a character any that strict JSON does not give as well, from a text without one reading any; or
if it does not mend a slip that has one, or if it takes a whole order beside a stop reason that does not mean complete. The first run installs the peers, each into an environment of its own; `--quick` takes those that are there.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs

from agentic_trading.llm.envelope import EnvelopeWorkflow
from agentic_trading.llm.envelope_rules import output_policy
from agentic_trading.llm.provider import ModelResponse
from agentic_trading.llm.result import Usage
from agentic_trading.structured import Accepted, read
from benchmarks.peers.contender import (
    Contender,
    Program,
    UnavailableError,
    is_ready,
    node_peer,
    peer,
    versions,
)
from benchmarks.peers.order import EXPECTED, ORDER, SCHEMAS
from benchmarks.peers.reader import same
from benchmarks.peers.slips import GUESSES, SLIPS, THINKING, meant

Reading = Literal["refused", "right", "wrong"]
OURS = "agentic_trading"
BLIND = "ticket"
"""The schema that is named to a contender that takes none."""
PEERS = ("json_repair", "fast_json_repair", "jsonrepair", "instructor", "pydantic_ai", "litellm", "baml")
QUICK_PEERS = ("json_repair",)
"""Peers that are cheap enough to be installed under `--quick`."""


@dataclass(frozen=True)
class Damaged:
    """The order, cut at each position, with each character lost, and cut behind thinking with a draft of it."""

    cuts: tuple[str, ...]
    losses: tuple[str, ...]
    thoughts: tuple[str, ...]


def damaged(every: int) -> Damaged:
    """Damage the order at every so manieth position."""
    places = range(0, len(ORDER), every)
    return Damaged(
        tuple(ORDER[:place] for place in places),
        tuple(ORDER[:place] + ORDER[place + 1 :] for place in places),
        tuple(_thoughts(every)),
    )


DRAFTS = {
    "typical": json.dumps({"symbol": "BTCUSDT", "side": "SELL", "qty": 2}),
    "full": json.dumps({**EXPECTED, "side": "SELL", "rationale": "A draft.", "legs": EXPECTED["legs"][:1]}),
}
"""Orders that the model thought of, which fit their schemas."""


def _thoughts(every: int) -> Iterator[str]:
    """Yield orders behind a draft in thinking, cut at each position with one kind of marks in turn.

    Without the opening mark they are cut behind the closing one: before it, no text tells a draft from an answer.
    """
    for number, (opening, closing) in enumerate(THINKING.values()):
        thinking = f"It is {DRAFTS['typical']} or {DRAFTS['full']}, or not.{closing}"
        opened, step = f"{opening}{thinking}{ORDER}", every * len(THINKING)
        yield from (opened[:place] for place in range(number, len(opened), step))
        yield from (
            f"{thinking}{ORDER}"[:place] for place in range(len(thinking), len(thinking) + len(ORDER), step)
        )


@dataclass
class Row:
    """One way of reading: what came of each text, by schema."""

    title: str
    contender: str
    way: str
    takes_schema: bool = True
    is_judged: bool = False
    cuts: dict[str, list[Reading]] = field(default_factory=dict)
    losses: dict[str, list[Reading]] = field(default_factory=dict)
    slips: list[Reading] = field(default_factory=list)
    guesses: list[Reading] = field(default_factory=list)
    thoughts: dict[str, list[Reading]] = field(default_factory=dict)
    unavailable: str = ""

    def wrong_cuts(self, schema: str) -> int:
        """Count the cuts that fit the schema and are not what was written."""
        return self.cuts[schema].count("wrong")

    def wrong_thoughts(self, schema: str) -> int:
        """Count the drafts that were taken for the order."""
        return self.thoughts.get(schema, []).count("wrong")

    def beyond(self, floor: "Row", schema: str) -> int:
        """Count the losses that give a wrong value where strict JSON gives none."""
        pairs = zip(self.losses[schema], floor.losses[schema], strict=True)
        return sum(mine == "wrong" != theirs for mine, theirs in pairs)

    def mended(self, floor: "Row", schema: str) -> int:
        """Count the losses that give what was written where strict JSON does not."""
        pairs = zip(self.losses[schema], floor.losses[schema], strict=True)
        return sum(mine == "right" != theirs for mine, theirs in pairs)


def rows() -> list[Row]:
    """Return who reads: the floor, ours, the peers."""
    return [
        Row("json.loads + jsonschema-rs (the floor)", OURS, "json"),
        Row("agentic_trading: read, as in planning", OURS, "planning", is_judged=True),
        Row("agentic_trading: read, as in analysis", OURS, "analysis", is_judged=True),
        Row("agentic_trading: read_json, lossless", OURS, "read_json", is_judged=True),
        Row("json-repair", "json_repair", "repair", takes_schema=False),
        Row("json-repair, strict=True", "json_repair", "strict", takes_schema=False),
        Row("fast-json-repair", "fast_json_repair", "repair", takes_schema=False),
        Row("jsonrepair (npm)", "jsonrepair", "repair", takes_schema=False),
        Row("instructor", "instructor", "extract"),
        Row("pydantic-ai", "pydantic_ai", "validate"),
        Row("LiteLLM, arguments of a tool call", "litellm", "arguments", takes_schema=False),
        Row("BAML", "baml", "parse"),
    ]


@cache
def validator(schema: str) -> jsonschema_rs.Validator:
    """Return what holds a value against a schema, whoever read it."""
    return jsonschema_rs.validator_for(SCHEMAS[schema], validate_formats=True)


def exact(text: str) -> Any:
    """Decode JSON with every number as it stands."""
    return json.loads(text, parse_float=Decimal)


def judged(told: str | None, meaning: Any, schema: str) -> Reading:
    """Say what it is that a text was read as; a value that breaks the schema is refused by whoever checks it."""
    if told is None:
        return "refused"
    try:
        value = exact(told)
    except ValueError:
        return "refused"
    if same(value, meaning):
        return "right"
    return "wrong" if validator(schema).is_valid(value) else "refused"


def readings(program: Program, row: Row, schema: str, texts: Sequence[str]) -> list[str | None]:
    """Have `texts` read; raises `UnavailableError` where the contender breaks."""
    request = {"way": row.way, "schema": schema, "texts": list(texts)}
    found: list[str | None] = json.loads(program.ask(json.dumps(request)))
    return found


def sweep(program: Program, row: Row, texts: Damaged) -> None:
    """Fill a row."""
    order, every = exact(ORDER), [*texts.cuts, *texts.losses, *texts.thoughts]
    blind = [] if row.takes_schema else readings(program, row, BLIND, every)
    for schema in ("typical", "full"):
        told = blind or readings(program, row, schema, every)
        found = [judged(one, order, schema) for one in told]
        thoughts = len(found) - len(texts.thoughts)
        row.cuts[schema], row.losses[schema] = found[: len(texts.cuts)], found[len(texts.cuts) : thoughts]
        row.thoughts[schema] = found[thoughts:]
    slips = [text for kind in SLIPS.values() for text in kind]
    told = readings(program, row, "ticket", slips)
    row.slips = [
        judged(one, exact(json.dumps(meant(text))), "ticket") for one, text in zip(told, slips, strict=True)
    ]
    guesses = [text for kind in GUESSES.values() for text in kind]
    row.guesses = [judged(one, None, "ticket") for one in readings(program, row, "ticket", guesses)]


def opened(name: str, *, quick: bool) -> Program:
    """Start a contender; raises `UnavailableError` where there is none."""
    if name == OURS:
        return Contender("benchmarks.ours_reading", Path(sys.executable))
    if quick and name not in QUICK_PEERS and not is_ready(name):
        raise UnavailableError("not installed yet; a run without --quick does it")
    return node_peer(name) if name == "jsonrepair" else peer(name)


def measure(table: Iterable[Row], texts: Damaged, *, quick: bool) -> None:
    """Fill all rows; one that cannot be filled says why."""
    with ExitStack() as stack:
        programs: dict[str, Program] = {}
        for row in table:
            try:
                if row.contender not in programs:
                    programs[row.contender] = stack.enter_context(opened(row.contender, quick=quick))
                sweep(programs[row.contender], row, texts)
            except UnavailableError as e:
                row.unavailable = e.reason


def print_table(table: Sequence[Row], texts: Damaged) -> None:
    """Print safety and recovery, as one pair."""
    floor, number = table[0], len(texts.cuts)
    slips, guesses = sum(map(len, SLIPS.values())), sum(map(len, GUESSES.values()))
    print(f"\n{'':<40}{'WRONG AND VALID':^48} |{'MENDED':^25}")
    print(
        f"{'':<40}{f'cuts ({number}), typical':>22}{'full':>6}{'losses':>8}{'full':>5}{f'guess of {guesses}':>13} |"
        f"{'losses':>8}{f'slips of {slips}':>13}"
    )
    for row in table:
        if row.unavailable:
            print(f"{row.title:<40}{row.unavailable}")
            continue
        cuts = row.wrong_cuts("typical")
        print(
            f"{row.title:<40}{cuts:>14}{cuts / number:>8.1%}{row.wrong_cuts('full'):>6}"
            f"{row.beyond(floor, 'typical'):>8}{row.beyond(floor, 'full'):>5}{row.guesses.count('wrong'):>13} |"
            f"{row.mended(floor, 'full'):>8}{row.slips.count('right'):>13}{_wrong(row)}"
        )
    print("Losses: beyond what strict JSON reads. (-1): one slip was read as something else.")


def _wrong(row: Row) -> str:
    wrong = row.slips.count("wrong")
    return f" (-{wrong})" if wrong else ""


def print_kinds(table: Sequence[Row]) -> None:
    """Print which kinds of slips are mended and of guesses taken, by whom; how many texts there are stands beside it."""
    there = [row for row in table if not row.unavailable]
    _print_kinds("Slips mended, by kind", SLIPS, [row.slips for row in there], "right")
    _print_kinds("Guesses taken, by kind", GUESSES, [row.guesses for row in there], "wrong")
    print("\nDrafts in thinking taken for an order that was cut; the columns are the same")
    for schema, draft in DRAFTS.items():
        counts = "".join(f"{row.wrong_thoughts(schema) or '.':>5}" for row in there)
        print(f"  {f'{schema} ({len(draft)} characters)':<38}{counts}")


def _print_kinds(
    title: str, kinds: Mapping[str, Sequence[str]], found: Sequence[Sequence[Reading]], counted: Reading
) -> None:
    print(f"\n{title}; the columns are the rows above, from the floor on")
    first = 0
    for kind, texts in kinds.items():
        counts = [readings[first : first + len(texts)].count(counted) for readings in found]
        print(f"  {kind + f' ({len(texts)})':<38}" + "".join(f"{count or '.':>5}" for count in counts))
        first += len(texts)


def kept(table: Sequence[Row]) -> bool:
    """Print what was promised and what is; return whether all of it holds."""
    floor, holds = table[0], True
    wrong = floor.losses["full"].count("wrong")
    print(
        f"\nStrict JSON itself reads {wrong} of {len(floor.losses['full'])} losses as another order (full schema)."
    )
    for row in table:
        if not row.is_judged:
            continue
        if row.unavailable:
            print(f"{row.title}: {row.unavailable}")
            return False
        invented = sum(row.wrong_cuts(schema) + row.beyond(floor, schema) for schema in ("typical", "full"))
        invented += row.wrong_thoughts("typical") + row.wrong_thoughts("full")
        invented += row.slips.count("wrong") + row.guesses.count("wrong")
        missed = len(row.slips) - row.slips.count("right")
        verdict = "holds" if invented == missed == 0 else "DOES NOT HOLD"
        print(f"{row.title}: {invented} wrong values introduced, {missed} slips not mended, {verdict}")
        holds &= verdict == "holds"
    return holds


NOT_COMPLETE = (
    "max_tokens", "MAX_TOKENS", "length", "model_length", "model_context_window_exceeded", "pause_turn", "error", "abort",
    "insufficient_system_resource", "OTHER", "MALFORMED_FUNCTION_CALL", "a new word", "content_filter", "SAFETY", "refusal",
)  # fmt: skip
"""Stop reasons of servers beside which a text may be cut, given up or filtered."""
COMPLETE = ("stop", "STOP", "end_turn", "tool_calls", "tool_use", "eos_token")


def is_taken(workflow: EnvelopeWorkflow, reason: str) -> bool:
    """Whether a workflow accepts the whole order beside this stop reason."""
    policy = output_policy(workflow)
    text = f'{ORDER.rstrip()[:-1]}, "end": "ok"}}' if policy.require_sentinel else ORDER
    response = ModelResponse(text, reason, Usage(input_tokens=100, output_tokens=50), "none")
    return isinstance(read(response, SCHEMAS["full"], policy), Accepted)


def stop_reasons_hold() -> bool:
    """Print beside which stop reasons each workflow takes a whole order; return whether it does so where it should."""
    holds = True
    print(
        f"\nWhole orders taken, of {len(NOT_COMPLETE)} stop reasons that are not complete, of {len(COMPLETE)} that are, of none"
    )
    for workflow in EnvelopeWorkflow:
        wrong = sum(is_taken(workflow, reason) for reason in NOT_COMPLETE)
        right = sum(is_taken(workflow, reason) for reason in COMPLETE)
        without = is_taken(workflow, "")
        fits = (wrong, right, without) == (0, len(COMPLETE), workflow is not EnvelopeWorkflow.EXECUTION)
        print(f"  {workflow:<38}{wrong:>5}{right:>5}{without:>5}   {'holds' if fits else 'DOES NOT HOLD'}")
        holds &= fits
    return holds


def main() -> int:
    """Print the tables; return the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--quick", action="store_true", help="every eighth position, and only peers that are there"
    )
    quick = arguments.parse_args().quick
    texts, table = damaged(8 if quick else 1), rows()
    measure(table, texts, quick=quick)
    print(
        f"An order of {len(ORDER):,} characters, cut at {len(texts.cuts):,} positions, and without one character at as many."
    )
    print(
        f"{len(texts.thoughts):,} texts have a draft in the model's thinking before the order, and are cut as well."
    )
    print("Peers: " + "; ".join(f"{name} ({versions(name)})" for name in PEERS))
    if table[0].unavailable:
        print(table[0].unavailable, file=sys.stderr)
        return 1
    print_table(table, texts)
    print_kinds(table)
    holds = [stop_reasons_hold(), kept(table)]
    return 0 if all(holds) else 1


if __name__ == "__main__":
    sys.exit(main())

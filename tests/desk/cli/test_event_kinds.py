"""Every kind of event has a body, a schema, a line in the golden log, a writer and readers that name it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import orjson
import pytest

from agentic_trading import plugins
from agentic_trading.bus.codec import event_message, read_event
from agentic_trading.canonical import canonical_bytes
from agentic_trading.client.frames import KINDS as RECURSION
from agentic_trading.client.frames import RecursionBody
from agentic_trading.desk.cli import renderers
from agentic_trading.desk.decisions import KINDS as DESK
from agentic_trading.desk.decisions import DeskBody
from agentic_trading.governance.events import KINDS as GOVERNANCE
from agentic_trading.governance.events import GovernanceBody
from agentic_trading.llm.event import KINDS as LOG
from agentic_trading.llm.event import Event, EventBody
from agentic_trading.llm.stores.memory import MemoryInteractionStore
from agentic_trading.operate import trace_lines
from tests.build import event
from tests.event_bodies import BODIES, as_event
from tools.schemas import EVENT_BODIES, published

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "log" / "events.jsonl"
FOLDS = {"agentic_trading/desk/decisions.py": 4, "agentic_trading/governance/rebuild.py": 2}
"""In how many places each treats every kind of a union by itself."""


def kinds_of_ours() -> Iterator[type[EventBody]]:
    """Yield every class of the package that is the body of a kind."""
    pending = [EventBody]
    while pending:
        body = pending.pop()
        pending.extend(body.__subclasses__())
        if hasattr(body, "KIND") and body.__module__.startswith("agentic_trading."):
            yield body


def test_every_body_is_listed_and_sampled() -> None:
    assert set(kinds_of_ours()) == set(EVENT_BODIES) == {type(body) for body in BODIES}
    assert len({body.KIND for body in EVENT_BODIES}) == len(EVENT_BODIES)


def test_unions_match_registered_kinds() -> None:
    assert set(get_args(DeskBody)) == set(DESK.bodies)
    assert set(get_args(GovernanceBody)) == set(GOVERNANCE.bodies)
    assert set(get_args(RecursionBody)) == set(RECURSION.bodies)
    owners = (DESK, RECURSION, GOVERNANCE, LOG)
    assert len(frozenset.union(*(one.namespaces for one in owners))) == sum(
        len(one.namespaces) for one in owners
    )


def test_kind_has_two_alphabetic_parts() -> None:
    for body in EVENT_BODIES:
        noun, _, happened = body.KIND.partition(".")
        assert noun.isalpha()
        assert happened.replace("_", "").isalpha()
        assert body.KIND not in {other.KIND.partition(".")[0] for other in EVENT_BODIES}


def test_golden_log_covers_every_kind() -> None:
    lines = [Event.model_validate_json(line) for line in GOLDEN.read_bytes().splitlines()]

    assert [line.kind for line in lines] == [body.KIND for body in BODIES]
    for line in lines:
        bodies = [kinds.of(line) for kinds in (DESK, RECURSION, GOVERNANCE, LOG)]
        (body,) = [one for one in bodies if one is not None]
        assert canonical_bytes(body.model_dump(mode="json")) == canonical_bytes(line.body)


def test_every_kind_schema_covers_sample() -> None:
    schemas = published()

    for body in BODIES:
        schema = schemas[f"{body.KIND}.v1.json"]
        assert schema["properties"]["kind"]["const"] == body.KIND
        assert set(orjson.loads(as_event(body).wire)) <= set(schema["properties"])


async def test_unknown_kind_round_trips_unchanged() -> None:
    newer = event("budget.adjusted", body={"by": 7}, of_a_newer_release={"kept": [1, None]})
    store = MemoryInteractionStore()

    await store.record(read_event(event_message(newer)))

    [entry] = [entry async for entry in store.scan()]
    assert entry.record.wire == newer.wire


def test_trace_fields_exist_in_bodies() -> None:
    samples = {body.KIND: as_event(body).body for body in BODIES}

    for kind, lines in {**trace_lines.SHOWN, **renderers.SHOWN}.items():
        for name in " ".join(line.rpartition(": ")[2] for line in lines if line != renderers.LAYERS).split():
            place = samples[kind]
            for part in name.split("."):
                assert part in place, f"{kind}: {name}"
                place = place[part] or {}


@pytest.mark.parametrize(("name", "places"), FOLDS.items())
def test_folds_end_with_assert_never(name: str, places: int) -> None:
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))

    last_cases = [ast.unparse(node.cases[-1]) for node in ast.walk(tree) if isinstance(node, ast.Match)]

    # With this last case mypy, which CI runs, reports a kind that no other case names.
    assert last_cases.count("case _:\n    assert_never(body)") == places


def test_desk_registers_renderer_per_namespace() -> None:
    offered = {offer.name: offer.load() for offer in plugins.offers(trace_lines.RENDERERS)}

    assert offered == dict.fromkeys(DESK.namespaces, renderers)

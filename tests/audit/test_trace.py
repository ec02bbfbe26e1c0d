"""A trace as a tree: nothing lost, nothing twice, whatever causes were named."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentic_trading.audit.trace import CallNode, EventNode, TraceNode, TraceTree, UnknownRecordError
from agentic_trading.llm.event import Event
from agentic_trading.llm.interaction import LLMInteraction, interaction_id
from agentic_trading.llm.store import Record
from tests.build import NOW, envelope, event, interaction


def step(record_id: str, cause: str = "", kind: str = "step") -> Event:
    return event(kind, id=record_id, causation_id=cause, trace_id="t")


def call(envelope_id: str, cause: str = "", attempts: Sequence[int] = (1,)) -> list[LLMInteraction]:
    """Return the attempts with these numbers at one envelope, each of 100 nano-dollars."""
    asked = envelope(envelope_id=envelope_id, causation_id=cause, trace_id="t")
    return [interaction(envelope=asked, attempt_number=number, cost_nusd=100) for number in attempts]


def drawn(tree: TraceTree) -> list[str]:
    """Return the tree as lines, two blanks a step."""
    return ["  " * row.depth + row.node.id for row in tree.rows()]


def roots_of(tree: TraceTree) -> list[TraceNode]:
    """Return the nodes that stand below no other."""
    return [row.node for row in tree.rows() if row.depth == 0]


def test_records_are_placed_under_causes() -> None:
    tree = TraceTree([
        step("bar"),
        *call("analysis", "bar"),
        step("skip", "bar"),
        step("assessment", "analysis"),
        step("intent", "assessment"),
    ])

    assert drawn(tree) == ["bar", "  analysis", "    assessment", "      intent", "  skip"]
    assert tree.orphans == ()


def test_cause_may_be_any_record_id() -> None:
    tree = TraceTree([
        step("bar"),
        *call("asked", "bar", attempts=(1, 2)),
        step("a", "asked"),
        step("b", interaction_id("asked", 1)),
        step("c", interaction_id("asked", 2)),
    ])

    assert drawn(tree) == ["bar", "  asked", "    a", "    b", "    c"]


def test_call_attempts_are_grouped_in_order() -> None:
    second, first = call("asked", attempts=(2, 1))

    tree = TraceTree([second, step("between", "asked"), first])

    (root,) = roots_of(tree)
    assert isinstance(root, CallNode)
    assert root.attempts == (first, second)
    assert (root.id, root.kind, root.cost_nusd, tree.cost_nusd) == ("asked", "call.general", 200, 200)
    assert root.as_of is None


def test_event_becomes_node_with_kind() -> None:
    (node,) = TraceTree([event("fill", id="f", causation_id="order", as_of=NOW)]).nodes

    assert isinstance(node, EventNode)
    assert (node.id, node.kind, node.cause, node.as_of) == ("f", "fill", "order", NOW)


def test_early_effect_is_placed_under_cause() -> None:
    tree = TraceTree([step("dispatched", "asked"), *call("asked")])

    assert drawn(tree) == ["asked", "  dispatched"]


def test_path_leads_from_root_to_record() -> None:
    tree = TraceTree([step("bar"), *call("asked", "bar"), step("intent", interaction_id("asked", 1))])

    assert [node.id for node in tree.path_to("intent")] == ["bar", "asked", "intent"]
    assert [node.id for node in tree.path_to(interaction_id("asked", 1))] == ["bar", "asked"]
    assert [node.id for node in tree.path_to("bar")] == ["bar"]


def test_node_returns_parent_and_children() -> None:
    tree = TraceTree([step("bar"), step("one", "bar"), step("other", "bar")])

    assert tree.parent("one") == tree.node("bar")
    assert tree.parent("bar") is None
    assert [node.id for node in tree.children("bar")] == ["one", "other"]


def test_record_without_cause_is_an_orphan() -> None:
    tree = TraceTree([step("bar"), step("lost", "gone"), step("child", "lost")])

    assert [(node.id, node.cause) for node in tree.orphans] == [("lost", "gone")]
    assert drawn(tree) == ["bar", "lost", "  child"]


@pytest.mark.parametrize(
    ("causes", "ring", "lines"),
    [
        ({"a": "a"}, ("a",), ["a"]),
        ({"a": "b", "b": "a"}, ("a", "b"), ["a", "  b"]),
        ({"x": "a", "a": "c", "b": "a", "c": "b"}, ("a", "b", "c"), ["a", "  x", "  b", "    c"]),
    ],
    ids=["itself", "two", "a tail and three"],
)
def test_cycle_is_cut_and_named(causes: dict[str, str], ring: tuple[str, ...], lines: list[str]) -> None:
    tree = TraceTree([step(name, cause) for name, cause in causes.items()])

    assert tree.cycles == (ring,)
    assert drawn(tree) == lines
    assert tree.orphans == ()


def test_duplicate_id_keeps_both_records() -> None:
    tree = TraceTree([step("same", kind="first"), step("same", kind="second"), step("child", "same")])

    assert [(row.depth, row.node.kind) for row in tree.rows()] == [(0, "first"), (1, "step"), (0, "second")]


def test_equal_envelope_ids_separate_by_tenant() -> None:
    mine, theirs = (envelope(envelope_id="same", tenant_id=name, trace_id="t") for name in ("mine", "theirs"))
    first, second = interaction(envelope=mine), interaction(envelope=theirs, attempt_number=2)

    tree = TraceTree([first, second, step("child", "same"), step("other", second.interaction_id)])

    assert [(row.depth, row.node.id, row.node.tenant) for row in tree.rows()] == [
        (0, "same", "mine"),
        (1, "child", "default"),
        (0, "same", "theirs"),
        (1, "other", "default"),
    ]
    assert tree.tenants == ("default", "mine", "theirs")


def test_unknown_record_id_is_named() -> None:
    with pytest.raises(UnknownRecordError, match="'nothing'") as unknown:
        TraceTree([step("bar")]).path_to("nothing")

    assert unknown.value.record_id == "nothing"


def test_empty_log_gives_empty_tree() -> None:
    tree = TraceTree([])

    assert (tree.nodes, tree.orphans, list(tree.rows())) == ((), (), [])


def test_long_chain_is_walked_without_recursion() -> None:
    tree = TraceTree([step("0"), *(step(str(n), str(n - 1)) for n in range(1, 5000))])

    assert len(tree.path_to("4999")) == 5000
    assert max(row.depth for row in tree.rows()) == 4999


@dataclass(frozen=True, slots=True)
class Trace:
    """A made-up trace: the id of each step, which step caused it, and all records in any order."""

    ids: list[str]
    causes: list[int | None]
    log: list[tuple[int, Record]]

    def records(self, *, without: int | None = None) -> list[Record]:
        return [record for place, record in self.log if place != without]

    def caused_by(self, cause: int | None) -> set[str]:
        return {name for name, by in zip(self.ids, self.causes, strict=True) if by == cause}


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw a trace in which every step but some beginnings is caused by an earlier one."""
    steps: list[list[Record]] = []
    causes: list[int | None] = []
    for place in range(draw(st.integers(1, 12))):
        cause = draw(st.none() | st.integers(0, place - 1)) if place else None
        name = "" if cause is None else draw(st.sampled_from(_names(steps[cause])))
        attempts = draw(st.integers(0, 3))
        steps.append(
            [*call(f"{place}", name, range(1, attempts + 1))] if attempts else [step(f"{place}", name)]
        )
        causes.append(cause)
    log = [(place, record) for place, records in enumerate(steps) for record in records]
    return Trace([str(place) for place in range(len(steps))], causes, draw(st.permutations(log)))


def _names(records: list[Record]) -> list[str]:
    """Return the ids by which a step may be named as a cause."""
    own = {r.id if isinstance(r, Event) else r.envelope.envelope_id for r in records}
    return [*own, *(r.interaction_id for r in records if isinstance(r, LLMInteraction))]


@given(traces())
def test_complete_log_has_no_orphans(trace: Trace) -> None:
    tree = TraceTree(trace.records())

    assert (tree.orphans, tree.cycles) == ((), ())
    assert {node.id for node in roots_of(tree)} == trace.caused_by(None)


@given(traces(), st.data())
def test_lost_step_orphans_only_children(trace: Trace, data: st.DataObject) -> None:
    lost = data.draw(st.integers(0, len(trace.ids) - 1))

    tree = TraceTree(trace.records(without=lost))

    assert {node.id for node in tree.orphans} == trace.caused_by(lost)
    assert tree.cycles == ()


@given(st.lists(st.integers(-1, 10), max_size=10))
def test_every_record_is_in_tree_once(causes: list[int]) -> None:
    records = [step(str(place), "" if cause < 0 else str(cause)) for place, cause in enumerate(causes)]

    tree = TraceTree(records)

    rows = list(tree.rows())
    assert sorted(int(row.node.id) for row in rows) == list(range(len(causes)))
    assert [row.depth for row in rows] == [len(tree.path_to(row.node.id)) - 1 for row in rows]
    assert {node.cause for node in tree.orphans} == {str(c) for c in causes if c >= len(causes)}
    assert len(roots_of(tree)) == len(tree.orphans) + len(tree.cycles) + causes.count(-1)

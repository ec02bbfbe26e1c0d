"""A trace as a tree of causes, and the causes of one record."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from agentic_trading.errors import TradingError
from agentic_trading.llm.envelope import LLMEnvelope
from agentic_trading.llm.errors import UnreadableBodyError
from agentic_trading.llm.event import KINDS, Event, RequestQuoted
from agentic_trading.llm.interaction import LLMInteraction
from agentic_trading.llm.store import IdKind, Record

ID_CHARACTERS: Final = 8
"""The shortest beginning of an id that is accepted in place of the id."""

ID_MATCHES: Final = 20
"""The most ids that an error about an ambiguous beginning lists."""


class ChainRecords(Protocol):
    """The queries that find a chain by one of its ids, in one log or in several. See `Records`."""

    async def find(self, record_id: str, *, tenant: str | None = None) -> Record | None:
        """Return the record with this id, or None."""
        ...

    async def ids_starting(
        self, prefix: str, *, of: IdKind = "record", limit: int = 20, tenant: str | None = None
    ) -> list[str]:
        """Return the ids that start with `prefix`, sorted, at most `limit`."""
        ...

    async def trace(self, trace_id: str, *, tenant: str | None = None) -> list[Record]:
        """Return all records of a decision chain."""
        ...

    async def by_envelope(self, envelope_id: str, *, tenant: str | None = None) -> list[LLMInteraction]:
        """Return all attempts at an envelope, oldest first."""
        ...


class UnknownRecordError(TradingError, LookupError):
    """The log has no record with this id.

    Attributes:
        record_id: The id.

    """

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        super().__init__(
            f"no record has the id {record_id!r}. Use the id of an event, an envelope or an interaction in this log, "
            f"or its first {ID_CHARACTERS} or more characters"
        )


class AmbiguousIdError(TradingError, LookupError):
    """Several ids start with the same prefix.

    Attributes:
        prefix: The prefix.
        matches: The first matches, sorted.

    """

    def __init__(self, prefix: str, matches: Sequence[str]) -> None:
        self.prefix = prefix
        self.matches = tuple(matches[:ID_MATCHES])
        more = " and others" if len(matches) > ID_MATCHES else ""
        super().__init__(
            f"several ids start with {prefix!r}: {', '.join(self.matches)}{more}. Give more characters"
        )


@dataclass(frozen=True, slots=True)
class EventNode:
    """One event of a trace."""

    event: Event

    @property
    def id(self) -> str:
        """The event's id."""
        return self.event.id

    @property
    def cause(self) -> str:
        """The recorded id of the direct cause. Empty for a root."""
        return self.event.causation_id

    @property
    def tenant(self) -> str:
        """The event's tenant."""
        return self.event.tenant_id

    @property
    def kind(self) -> str:
        """The event's kind."""
        return self.event.kind

    @property
    def as_of(self) -> datetime | None:
        """The market time of the event, if it has one."""
        return self.event.as_of


@dataclass(frozen=True, slots=True)
class CallNode:
    """One call of a trace: the attempts at one envelope, at least one, sorted by number."""

    attempts: tuple[LLMInteraction, ...]

    @property
    def envelope(self) -> LLMEnvelope:
        """The envelope of all attempts."""
        return self.attempts[0].envelope

    @property
    def id(self) -> str:
        """The envelope's id."""
        return self.envelope.envelope_id

    @property
    def cause(self) -> str:
        """The recorded id of the direct cause. Empty for a root."""
        return self.envelope.causation_id

    @property
    def tenant(self) -> str:
        """The call's tenant."""
        return self.envelope.tenant_id

    @property
    def kind(self) -> str:
        """`call.` and the workflow."""
        return f"call.{self.envelope.workflow}"

    @property
    def as_of(self) -> datetime | None:
        """The market time of the envelope, if it has one."""
        return self.envelope.as_of

    @property
    def cost_nusd(self) -> int:
        """The cost of all attempts, in nano-dollars."""
        return sum(attempt.result.cost_nusd for attempt in self.attempts)


TraceNode = EventNode | CallNode


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A printed node: it follows its cause, `depth` steps below a root."""

    depth: int
    node: TraceNode


class TraceTree:
    """The records of one trace as a tree of causes.

    A cause is named by the id of an event, an envelope, or an interaction. Every record is in the tree
    exactly once. All nodes are in the order of the log. A call has the place of its first attempt.

    Attributes:
        nodes: All nodes.
        orphans: Roots whose cause is not among the records.
        cycles: Rings of causes, as ids. The first node of each ring becomes a root.

    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.nodes, self._places = _nodes_of(records)
        self._parents = [self._places.get(node.cause) for node in self.nodes]
        self.orphans = tuple(
            node
            for node, parent in zip(self.nodes, self._parents, strict=True)
            if node.cause and parent is None
        )
        self.cycles = tuple(
            tuple(self.nodes[place].id for place in ring) for ring in _cut_rings(self._parents)
        )
        self._children: list[list[int]] = [[] for _ in self.nodes]
        for place, parent in enumerate(self._parents):
            if parent is not None:
                self._children[parent].append(place)
        self._roots = [place for place, parent in enumerate(self._parents) if parent is None]

    @property
    def tenants(self) -> tuple[str, ...]:
        """The tenants of the records, sorted. More than one only if the trace was read without a tenant."""
        return tuple(sorted({node.tenant for node in self.nodes}))

    @property
    def cost_nusd(self) -> int:
        """The cost of all calls of the trace, in nano-dollars."""
        return sum(node.cost_nusd for node in self.nodes if isinstance(node, CallNode))

    def node(self, record_id: str) -> TraceNode:
        """Return the node of an event, envelope or interaction. Raises `UnknownRecordError`."""
        return self.nodes[self._place(record_id)]

    def parent(self, record_id: str) -> TraceNode | None:
        """Return the node of the direct cause, or None for a root. Raises `UnknownRecordError`."""
        parent = self._parents[self._place(record_id)]
        return None if parent is None else self.nodes[parent]

    def children(self, record_id: str) -> tuple[TraceNode, ...]:
        """Return the direct effects of a record. Raises `UnknownRecordError`."""
        return self._at(self._children[self._place(record_id)])

    def path_to(self, record_id: str) -> tuple[TraceNode, ...]:
        """Return the chain of causes from a root to the record. Raises `UnknownRecordError`."""
        path = []
        place: int | None = self._place(record_id)
        while place is not None:
            path.append(place)
            place = self._parents[place]
        return self._at(reversed(path))

    def rows(self) -> Iterator[TraceRow]:
        """Yield every node once, each after its cause and before the next child of its cause."""
        ahead = [(0, root) for root in reversed(self._roots)]
        while ahead:
            depth, place = ahead.pop()
            yield TraceRow(depth, self.nodes[place])
            ahead.extend((depth + 1, child) for child in reversed(self._children[place]))

    def _place(self, record_id: str) -> int:
        try:
            return self._places[record_id]
        except KeyError:
            raise UnknownRecordError(record_id) from None

    def _at(self, places: Iterable[int]) -> tuple[TraceNode, ...]:
        return tuple(self.nodes[place] for place in places)


def _nodes_of(records: Iterable[Record]) -> tuple[tuple[TraceNode, ...], dict[str, int]]:
    """Return a node per event and per tenant's envelope, and the place of each id."""
    steps: list[Event | list[LLMInteraction]] = []
    calls: dict[tuple[str, str], tuple[int, list[LLMInteraction]]] = {}
    places: dict[str, int] = {}
    for record in records:
        if isinstance(record, Event):
            places.setdefault(record.id, len(steps))
            steps.append(record)
            continue
        envelope = record.envelope
        key = (envelope.tenant_id, envelope.envelope_id)
        if key not in calls:
            calls[key] = (len(steps), [])
            places.setdefault(envelope.envelope_id, len(steps))
            steps.append(calls[key][1])
        place, attempts = calls[key]
        attempts.append(record)
        places.setdefault(record.interaction_id, place)
    return tuple(_node(step) for step in steps), places


def _node(step: Event | list[LLMInteraction]) -> TraceNode:
    if isinstance(step, Event):
        return EventNode(step)
    return CallNode(tuple(sorted(step, key=lambda attempt: attempt.result.attempt_number)))


def _cut_rings(parents: list[int | None]) -> list[list[int]]:
    """Make the first node of each ring of causes a root. Return the rings."""
    rings = []
    settled: set[int] = set()
    for start in range(len(parents)):
        walk: dict[int, None] = {}
        at: int | None = start
        while at is not None and at not in settled and at not in walk:
            walk[at] = None
            at = parents[at]
        if at is not None and at in walk:
            steps = list(walk)
            ring = sorted(steps[steps.index(at) :])
            parents[ring[0]] = None
            rings.append(ring)
        settled.update(walk)
    return rings


@dataclass(frozen=True, slots=True)
class CausalPath:
    """The causes of one record.

    Attributes:
        record_id: The id of the record.
        trace_id: The id of its trace.
        path: The nodes from the first cause to the record. An interaction appears as its call, with all
            attempts.
        siblings: Other effects of the direct cause, in the order of the log.
        effects: Direct effects of the record, in the order of the log.
        quoted: Other calls with answers that the requests on the path repeat, in the order of the log.

    """

    record_id: str
    trace_id: str
    path: tuple[TraceNode, ...]
    siblings: tuple[TraceNode, ...]
    effects: tuple[TraceNode, ...]
    quoted: tuple[TraceNode, ...] = ()

    @property
    def missing_cause(self) -> str:
        """The id at which the path ends: a cause outside the trace, or a ring.

        Empty if the path is complete.
        """
        return self.path[0].cause


async def why(records: ChainRecords, record_id: str, *, tenant: str | None = None) -> CausalPath:
    """Return the causes of an event, an envelope or an interaction.

    Args:
        records: The records of a log, or of several.
        record_id: The id, or its first eight or more characters.
        tenant: The tenant whose records are read. Ids of other tenants are unknown, and missing as causes.
            None means all tenants.

    Raises:
        UnknownRecordError: If no record has the id.
        AmbiguousIdError: If several ids start with `record_id`.

    """
    record_id = await full_id(records, record_id, tenant=tenant)
    trace_id = (await find_record(records, record_id, tenant)).trace_id
    tree = TraceTree(await records.trace(trace_id, tenant=tenant))
    node, parent = tree.node(record_id), tree.parent(record_id)
    children = () if parent is None else tree.children(parent.id)
    path = tree.path_to(record_id)
    return CausalPath(
        record_id=record_id,
        trace_id=trace_id,
        path=path,
        siblings=tuple(sibling for sibling in children if sibling is not node),
        effects=tree.children(record_id),
        quoted=tuple(_quoted(tree, path)),
    )


def _quoted(tree: TraceTree, path: Sequence[TraceNode]) -> Iterator[TraceNode]:
    """Yield the calls that requests on a path repeat, and that are not on it themselves."""
    effects = (effect for node in path for effect in tree.children(node.id))
    named: set[str] = set()
    for effect in effects:
        # A newer release may have written another body under this kind.
        with suppress(UnreadableBodyError):
            body = KINDS.of(effect.event) if isinstance(effect, EventNode) else None
            named.update(body.interactions if isinstance(body, RequestQuoted) else ())
    on_path = {node.id for node in path}
    for node in tree.nodes:
        ids = {one.interaction_id for one in node.attempts} if isinstance(node, CallNode) else set()
        if ids & named and node.id not in on_path:
            yield node


async def full_id(
    records: ChainRecords, prefix: str, *, of: IdKind = "record", tenant: str | None = None
) -> str:
    """Return the only id that starts with `prefix`.

    Returns `prefix` if it is an id itself, is shorter than `ID_CHARACTERS`, or has no match.

    Raises:
        AmbiguousIdError: If several ids start with it.

    """
    if len(prefix) < ID_CHARACTERS:
        return prefix
    matches = await records.ids_starting(prefix, of=of, limit=ID_MATCHES + 1, tenant=tenant)
    if len(matches) > 1 and prefix not in matches:
        raise AmbiguousIdError(prefix, matches)
    return matches[0] if matches else prefix


async def find_record(records: ChainRecords, record_id: str, tenant: str | None) -> Record:
    """Return the record with an id, or the first attempt of the envelope with this id.

    Raises:
        UnknownRecordError: If no record has the id.

    """
    record = await records.find(record_id, tenant=tenant)
    if record is not None:
        return record
    attempts = await records.by_envelope(record_id, tenant=tenant)
    if not attempts:
        raise UnknownRecordError(record_id)
    return attempts[0]

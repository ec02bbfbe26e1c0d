"""Why something was done: the chain of causes behind one record."""

from dataclasses import dataclass

from agentic_trading.audit.errors import UnknownRecordError
from agentic_trading.audit.trace import TraceNode, TraceTree
from agentic_trading.llm.records import Records
from agentic_trading.llm.store import Record


@dataclass(frozen=True, slots=True)
class CausalPath:
    """The causes of one record.

    `path` leads from the first cause to the record itself (for an interaction: to its call, with all attempts).
    `siblings` are what else the direct cause led to, `effects` what the record led to, both in the log's order.
    """

    record_id: str
    trace_id: str
    path: tuple[TraceNode, ...]
    siblings: tuple[TraceNode, ...]
    effects: tuple[TraceNode, ...]

    @property
    def missing_cause(self) -> str:
        """The id where the path breaks off: a cause that is not in the trace, or a ring; empty if none is missing."""
        return self.path[0].cause


async def why(records: Records, record_id: str, *, tenant: str | None = None) -> CausalPath:
    """Return the causes of an event, an envelope or an interaction; with a `tenant`, as far as they are its own.

    Raises `UnknownRecordError` if there is none with this id; an id of another tenant is as unknown as any other, and
    as a cause it is one that is not there.
    """
    trace_id = (await _find(records, record_id, tenant)).trace_id
    tree = TraceTree(await records.trace(trace_id, tenant=tenant))
    node, parent = tree.node(record_id), tree.parent(record_id)
    beside = () if parent is None else tree.children(parent.id)
    return CausalPath(
        record_id=record_id,
        trace_id=trace_id,
        path=tree.path_to(record_id),
        siblings=tuple(sibling for sibling in beside if sibling is not node),
        effects=tree.children(record_id),
    )


async def _find(records: Records, record_id: str, tenant: str | None) -> Record:
    record = await records.find(record_id, tenant=tenant)
    if record is not None:
        return record
    attempts = await records.by_envelope(record_id, tenant=tenant)
    if not attempts:
        raise UnknownRecordError(record_id)
    return attempts[0]

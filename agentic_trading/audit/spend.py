"""What calls cost: sums by agent, model, workflow, day or tenant, and all of it together."""

from dataclasses import dataclass

from agentic_trading.llm.store import Records, Spend, SpendKey


@dataclass(frozen=True, slots=True)
class SpendReport:
    """Sums by the keys `by`, one row per group of attempts, and their total (whose key is empty)."""

    by: tuple[SpendKey, ...]
    rows: tuple[Spend, ...]
    total: Spend


async def spend_report(records: Records, *by: SpendKey, tenant: str | None = None) -> SpendReport:
    """Return what was used, by the given keys and in the order of their values; without keys only the total.

    With a `tenant`, what it used alone.
    """
    rows = tuple(await records.spend(*by, tenant=tenant))
    total = Spend(
        key=(),
        attempts=sum(row.attempts for row in rows),
        failed=sum(row.failed for row in rows),
        input_tokens=sum(row.input_tokens for row in rows),
        output_tokens=sum(row.output_tokens for row in rows),
        cost_nusd=sum(row.cost_nusd for row in rows),
    )
    return SpendReport(by, rows if by else (), total)

"""Rows of the page of budgets: counters, refusals, waiting calls and workers, as texts that are ready to print."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_DOWN, Decimal
from typing import Final

from agentic_trading.governance.limits import UNITS, ScopeKind, Unit, Window
from agentic_trading.governance.status_feed import BudgetStatus, CounterStatus, lasting_counters
from agentic_trading.llm.limits import NANO
from agentic_trading.operate.budgets import BudgetView

BAR_WIDTH: Final = 200
NEARLY: Final = 0.8
"""The share of a ceiling from which the outlook is a warning, at a dotted line in each bar."""
SOON: Final = timedelta(hours=1)
SILENT_AFTER: Final = timedelta(seconds=10)
"""The age of a worker's report from which the worker is silent."""
SPARK_WIDTH: Final = 90
SPARK_HEIGHT: Final = 22
NONE: Final = "-"

_OFFSET: Final = re.compile(r"[+-]\d{4}$", re.ASCII)
_SCOPES: Final = (ScopeKind.TENANT, ScopeKind.PRINCIPAL, ScopeKind.WORKFLOW, ScopeKind.AGENT)
_WINDOWS: Final = (Window.NONE, Window.MONTH, Window.DAY, Window.HOUR, Window.MINUTE)


@dataclass(frozen=True, slots=True)
class Outlook:
    """The future of a counter, as a sign and words. `tone` is good, warn, bad or dim."""

    sign: str
    text: str
    tone: str


@dataclass(frozen=True, slots=True)
class CounterRow:
    """One unit of a counter.

    Attributes:
        key: Its identity among all rows.
        used: The bar in words.
        bar: The x positions in the bar: the begin of the part in doubt, and the ends of spent and held.
        widths: The widths of the parts spent, in doubt and held.
        spark: The path of the line of the last ten minutes, or an empty text.
        spark_text: The line in words.

    """

    key: str
    scope: str
    id: str
    window: str
    window_id: str
    used: str
    bar: tuple[str, str, str]
    widths: tuple[str, str, str]
    spent: str
    in_doubt: str
    has_doubt: bool
    held: str
    left: str
    limit: str
    unit: str
    pace: str
    outlook: Outlook
    spark: str = ""
    spark_text: str = ""


@dataclass(frozen=True, slots=True)
class RefusalRow:
    """The refusals of an agent for one reason. `envelope` is the envelope of the last one."""

    last: str
    times: str
    tenant: str
    agent: str
    kind: str
    reason: str
    envelope: str


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """A call that waits for headroom."""

    waits: str
    tenant: str
    counter: str
    asked: str
    left: str
    unit: str
    priority: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker and its calls since its start."""

    name: str
    age: str
    state: str
    tone: str
    admitted: str
    refused: str
    in_flight: str
    in_doubt: str
    overruns: str
    reserved_share: str


def short_usd(nusd: int) -> str:
    """Return an amount in dollars with four significant digits, and with two decimals from 100 dollars on.

    It is cut and not rounded up, so that an amount below its limit never looks like the limit.
    """
    amount = Decimal(nusd) / NANO
    if not nusd:
        return "0"
    digits = max(2, min(9, 3 - amount.adjusted()))
    return f"{amount.quantize(Decimal(1).scaleb(-digits), ROUND_DOWN):,f}"


def amount(unit: Unit, value: int) -> str:
    """Return an amount of a unit, without its unit."""
    return short_usd(value) if unit == "nano-USD" else f"{value:,}"


def unit_name(unit: Unit) -> str:
    """Return the unit of `amount`."""
    return "USD" if unit == "nano-USD" else unit


def span_text(span: timedelta) -> str:
    """Return a time span in its largest unit that is not too coarse: `45 s`, `79 min`, `5 h`, `3 d`."""
    seconds = max(0, int(span.total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    return f"{seconds // 3_600} h" if seconds < 172_800 else f"{seconds // 86_400} d"


def newest_report(view: BudgetView) -> BudgetStatus | None:
    """Return the last report of a tenant's workers, or None."""
    return max(view.workers, key=lambda status: status.time, default=None)


def is_reporting(status: BudgetStatus, now: datetime) -> bool:
    """Return whether a worker has reported a moment ago, and not that it ended."""
    return status.is_running and now - status.time < SILENT_AFTER


def shown_counters(view: BudgetView) -> Sequence[CounterStatus]:
    """Return the counters of a tenant, those of wide scopes and long windows first."""
    return sorted(lasting_counters(view.counters), key=_order)


def _order(counter: CounterStatus) -> tuple[int, str, int]:
    return _SCOPES.index(counter.scope), counter.id, _WINDOWS.index(counter.window)


def units_of(counter: CounterStatus) -> Iterator[tuple[Unit, int, int, int, int]]:
    """Yield unit, ceiling, spent, held and in doubt of each limited unit."""
    for unit, most, spent, held, in_doubt in zip(
        UNITS, counter.most, counter.spent, counter.held, counter.in_doubt, strict=True
    ):
        if most is not None:
            yield unit, most, spent, held, in_doubt


def row_key(name: str, tenant: str, counter: CounterStatus, unit: Unit) -> str:
    """Return the identity of a row. It is the same for all windows of a counter."""
    return f"{name}\x1f{tenant}\x1f{counter.scope}\x1f{counter.id}\x1f{counter.window}\x1f{unit}"


def counter_name(counter: CounterStatus, tenant: str) -> str:
    """Return scope and id, without the id of the tenant itself."""
    return counter.scope if counter.id == tenant else f"{counter.scope} {counter.id}"


def window_name(counter: CounterStatus) -> str:
    """Return the window of a counter as a word."""
    return "total" if counter.window is Window.NONE else str(counter.window)


def counter_rows(name: str, view: BudgetView, counter: CounterStatus, now: datetime) -> Iterator[CounterRow]:
    """Yield a row for each limited unit of a counter. `name` is that of the source."""
    report = newest_report(view)
    as_of = now if report is None else report.as_of
    runs = any(is_reporting(status, now) for status in view.workers)
    for unit, most, spent, held, in_doubt in units_of(counter):
        ends = [_place(part, most) for part in (spent - in_doubt, spent, spent + held)]
        pace = counter.nusd_per_hour if unit == "nano-USD" else None
        share = spent / most if most else 1.0
        yield CounterRow(
            key=row_key(name, view.tenant, counter, unit),
            scope=counter.scope,
            id="" if counter.id == view.tenant else counter.id,
            window=window_name(counter),
            window_id=_window_text(counter, as_of),
            used=f"{100 * spent // most if most else 100}% used, {100 * held // most if most else 0}% held",
            bar=(_text(ends[0]), _text(ends[1]), _text(ends[2])),
            widths=(_text(ends[1]), _text(ends[1] - ends[0]), _text(ends[2] - ends[1])),
            spent=amount(unit, spent),
            in_doubt=amount(unit, in_doubt) if in_doubt else NONE,
            has_doubt=in_doubt > 0,
            held=amount(unit, held),
            left=amount(unit, max(0, most - spent - held)),
            limit=amount(unit, most),
            unit=unit_name(unit),
            pace=NONE if pace is None else short_usd(pace),
            outlook=_outlook(counter, unit, share, as_of, runs=runs),
        )


def _place(part: int, most: int) -> float:
    return BAR_WIDTH * max(0.0, min(1.0, part / most)) if most else float(BAR_WIDTH)


def _text(place: float) -> str:
    return f"{place:.1f}"


def _window_text(counter: CounterStatus, as_of: datetime) -> str:
    """Return the id of a window for readers, without the part that is also in `as_of`: `20:00`, `2026-11-27`.

    Times of another zone than UTC have their offset, because all other times of the page are UTC.
    """
    offset = "".join(_OFFSET.findall(counter.window_id))
    text = counter.window_id.removesuffix(offset).replace("T", " ")
    text = f"{text}:00" if counter.window is Window.HOUR else text
    today = f"{as_of:%Y-%m-%d}"
    if today.startswith(text):
        return ""
    return f"{text.removeprefix(today)} {offset.removesuffix('+0000')}".strip()


def _outlook(counter: CounterStatus, unit: Unit, share: float, as_of: datetime, *, runs: bool) -> Outlook:
    if unit in counter.exhausted:
        return Outlook("■", "used up" if share >= 1 else "too little for a call", "bad")
    end = counter.exhausted_at
    if runs and end is not None and counter.exhausted_unit == unit:
        rest = end - as_of
        when = f"{end:%H:%M}" if end.date() == as_of.date() else f"{end:%Y-%m-%d %H:%M}"
        return Outlook("▲", f"out {when}, in {span_text(rest)}", "bad" if rest < SOON else "warn")
    if share >= NEARLY:
        return Outlook("▲", f"{int(100 * share)} % used", "warn")
    if not runs:
        return Outlook(NONE, "no worker runs", "dim")
    return Outlook("✓", "lasts" if counter.window is Window.NONE else "lasts its window", "good")


def spark_path(amounts: Sequence[int]) -> str:
    """Return the path of a line of amounts in a box of `SPARK_WIDTH` by `SPARK_HEIGHT`. Empty for fewer than two."""
    if len(amounts) < 2:
        return ""
    step, most = SPARK_WIDTH / (len(amounts) - 1), max(amounts) or 1
    points = (
        f"{n * step:.0f} {SPARK_HEIGHT - 1 - (SPARK_HEIGHT - 2) * max(0, value) / most:.0f}"
        for n, value in enumerate(amounts)
    )
    return f"M{'L'.join(points)}"


def refusal_rows(views: Iterable[BudgetView], most: int) -> list[RefusalRow]:
    """Return the refusals in the last reports, the same reasons together, newest first."""
    found: dict[tuple[str, ...], list[tuple[datetime, str, str]]] = {}
    for view in views:
        for one in {refused: None for worker in view.workers for refused in worker.refusals}:
            # Without its counter, a reason is its text, which has amounts that differ from call to call.
            counter = (one.scope or "", one.id, one.window or "", one.unit or "")
            reason = counter if any(counter) else (one.why,)
            key = (view.tenant, one.agent, str(one.kind), *reason)
            found.setdefault(key, []).append((one.at, one.envelope_id, one.why))
    newest = sorted(found.items(), key=lambda item: max(item[1]), reverse=True)[:most]
    rows = []
    for (tenant, agent, kind, *_), each in newest:
        at, envelope, why = max(each)
        rows.append(
            RefusalRow(f"{at:%Y-%m-%d %H:%M:%S}", f"{len(each):,}", tenant, agent, kind, why, envelope)
        )
    return rows


def waiting_rows(views: Iterable[BudgetView], now: datetime, most: int) -> list[WaitingRow]:
    """Return the calls that wait for headroom, the longest first."""
    rows = []
    for view in views:
        report = newest_report(view)
        as_of = now if report is None else report.as_of
        for one in view.parked:
            counter = one.scope if one.id == view.tenant else f"{one.scope} {one.id}"
            asked, left = amount(one.unit, one.asked), amount(one.unit, one.left)
            row = WaitingRow(
                span_text(as_of - one.since), view.tenant, counter, asked, left, unit_name(one.unit),
                str(one.priority),
            )  # fmt: skip
            rows.append((as_of - one.since, row))
    return [row for _, row in sorted(rows, key=lambda item: item[0], reverse=True)[:most]]


def worker_rows(views: Iterable[tuple[str, BudgetView]], now: datetime) -> list[WorkerRow]:
    """Return the workers in the last reports. Of several reports of a worker, the newest counts.

    Args:
        views: The views, each with the name of its source.
        now: The current time.

    """
    newest: dict[tuple[str, str], BudgetStatus] = {}
    for name, view in views:
        for status in view.workers:
            known = newest.get((name, status.worker))
            if known is None or status.time > known.time:
                newest[name, status.worker] = status
    return [_worker_row(name, status, now) for (name, _), status in sorted(newest.items())]


def _worker_row(name: str, status: BudgetStatus, now: datetime) -> WorkerRow:
    if is_reporting(status, now):
        state, tone = "✓ runs", "good"
    elif status.is_running:
        state, tone = "■ silent", "bad"
    else:
        state, tone = f"{NONE} ended", "dim"
    calls = status.calls
    share = f"{calls.reserved_nusd / calls.charged_nusd:.2f}" if calls.charged_nusd else NONE
    return WorkerRow(
        name=f"{name} · {status.worker}" if name else status.worker,
        age=f"{span_text(now - status.time)} ago",
        state=state,
        tone=tone,
        admitted=f"{calls.admitted:,}",
        refused=f"{calls.refused:,}",
        in_flight=f"{calls.in_flight:,}",
        in_doubt=f"{calls.in_doubt:,}",
        overruns=f"{calls.overruns:,}",
        reserved_share=share,
    )

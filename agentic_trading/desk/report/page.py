"""The page of a run: views with texts that are ready to print, and their HTML."""

from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from shlex import quote
from typing import Any, Final

from agentic_trading.desk.inference import DOLLARS, InferenceRate
from agentic_trading.desk.report.assumptions import (
    AssumptionRow,
    ReportTerms,
    assumption_rows,
    is_after_cutoff,
    origin_of_sample,
)
from agentic_trading.desk.report.chart import Chart, bar_shape
from agentic_trading.desk.report.drawing import PriceChart, equity_charts, price_charts
from agentic_trading.desk.report.figures import EquityPeriod, days, months, net_equity, round_trips
from agentic_trading.desk.report.record import AttemptOnRecord, RunOnRecord, cost_by
from agentic_trading.desk.session.report import FAULT_NAMES, FAULT_OUTCOMES, RunReport
from agentic_trading.desk.session.round_trips import RoundTrip
from agentic_trading.llm.limits import NANO
from agentic_trading.monitor.render import packaged, rendered
from agentic_trading.operate.choices import pluralize

PACKAGE: Final = "agentic_trading.desk.report"
STYLE: Final = "style.css"
MOST_TRIPS: Final = 200
"""Round trips on the page. All are in `fills.csv`."""
PREFIX: Final = 8
MOST_DIGESTS: Final = 4
ABSENT: Final = "-"
QUANTILES: Final = (50, 95, 99)
"""The quantiles of latency, in percent."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure in the head of the page. `tone` is good, bad or empty."""

    name: str
    value: str
    note: str
    tone: str = ""


@dataclass(frozen=True, slots=True)
class CountBar:
    """A count with its bar. `path` is in a box of 100 by 10."""

    name: str
    value: str
    path: str


@dataclass(frozen=True, slots=True)
class CountTable:
    """Counts of one kind."""

    name: str
    bars: tuple[CountBar, ...]
    tone: str = ""


@dataclass(frozen=True, slots=True)
class TripRow:
    """A round trip. `why` is the command that explains it."""

    symbol: str
    side: str
    opened: str
    closed: str
    ended_by: str
    pnl: str
    tone: str
    fees: str
    inference: str
    why: str


@dataclass(frozen=True, slots=True)
class PeriodRow:
    """A day or a month."""

    name: str
    share: str
    pnl: str
    tone: str


@dataclass(frozen=True, slots=True)
class NamedText:
    """A row of a table: a name and its text. `is_code` is set for digests and commands."""

    name: str
    text: str
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Everything on the page of a run."""

    title: str
    subtitle: str
    place: str
    currency: str
    warnings: tuple[str, ...]
    claim: str
    tiles: tuple[Tile, ...]
    equity: tuple[Chart, ...]
    drawdown: tuple[Chart, ...]
    legend: tuple[tuple[str, str], ...]
    prices: tuple[PriceChart, ...]
    plans: tuple[tuple[str, ...], ...]
    decisions: tuple[CountTable, ...]
    facts: tuple[NamedText, ...]
    calls: tuple[CountTable, ...]
    trips: tuple[TripRow, ...]
    trips_note: str
    has_symbols: bool
    days: tuple[PeriodRow, ...]
    months: tuple[PeriodRow, ...]
    assumptions: tuple[AssumptionRow, ...]
    record: tuple[NamedText, ...]
    commands: tuple[NamedText, ...]


def page_of(run: RunOnRecord, terms: ReportTerms) -> SessionPage:
    """Return the page of a run.

    It depends on the record and the terms only, so that a second page has equal bytes.
    """
    report, trips = run.report, round_trips(run)
    by_day = days(run.points, report.equity_start)
    by_month = months(run.points, report.equity_start)
    return SessionPage(
        title=_title(run),
        subtitle=_subtitle(run),
        place=f"session {report.session_id} · run {report.run_number} · {report.mode}",
        currency=run.currency,
        warnings=tuple(_warnings(run)),
        claim=_claim(run),
        tiles=tuple(_tiles(run, terms, trips)),
        **_charts(run, trips, terms.rate),
        plans=tuple(_plans(run)),
        decisions=tuple(_decisions(run)),
        facts=tuple(_facts(run)),
        calls=tuple(_calls(run)),
        trips=tuple(_trip(run, each) for each in trips[:MOST_TRIPS]),
        trips_note=_trips_note(run, trips),
        has_symbols=len(report.data) > 1,
        days=tuple(map(_period, by_day)),
        months=tuple(map(_period, by_month)) if len(by_month) > 1 else (),
        assumptions=tuple(assumption_rows(run, trips, terms)),
        record=tuple(_record(run)),
        commands=tuple(_commands(run)),
    )


def html_of(page: SessionPage) -> str:
    """Return a page as one HTML file without script. Its policy allows only its own style. Blocks."""
    # The style is hashed, so that the policy of the page refuses every other style.
    style, digest = packaged(PACKAGE, STYLE), style_digest()
    return rendered(f"{PACKAGE}/session.html.j2", page=page, style=style, digest=digest)


def style_digest() -> str:
    """Return the SHA-256 of the style of the page, in Base64. Blocks."""
    return b64encode(sha256(packaged(PACKAGE, STYLE).encode()).digest()).decode()


def money(amount: Decimal) -> str:
    """Return an amount with a sign and two decimals."""
    return f"{amount:+,.2f}"


def dollars(nusd: int) -> str:
    """Return nano-dollars as dollars, with six decimals as in the lists of `spend`."""
    return f"{Decimal(nusd) / NANO:,.6f}"


def moment(at: datetime | None) -> str:
    """Return a time in UTC, without seconds."""
    return f"{at:%Y-%m-%d %H:%M}" if at else ABSENT


def _tone(amount: Decimal | float) -> str:
    return "good" if amount > 0 else "bad" if amount < 0 else ""


def words(name: str) -> str:
    """Return a stored word for a reader."""
    return name.replace("_", " ")


def _title(run: RunOnRecord) -> str:
    report = run.report
    symbols = [each.symbol for each in report.data]
    what = report.data[0].name if run.is_portfolio or len(symbols) > 4 else " and ".join(symbols)
    return f"{what} · {report.provider}/{report.model}" if report.model else f"{what} · {report.provider}"


def _subtitle(run: RunOnRecord) -> str:
    data = run.report.data
    first = min((each.first for each in data if each.first), default=None)
    last = max((each.last for each in data if each.last), default=None)
    stocks = f"{pluralize(len(data), 'symbol')}, " if len(data) > 1 else ""
    return f"{stocks}{pluralize(sum(each.bars for each in data), 'bar')}, {moment(first)} to {moment(last)} UTC. Orders are filled on paper."


def _warnings(run: RunOnRecord) -> Iterator[str]:
    manifest, broken = run.manifest, run.log.of_run((run.report.session_id, run.report.run_number))
    if manifest.digest is None:
        yield "The run has not ended."
    for finding in broken:
        place = f"{finding.file.name}, line {finding.line}" if finding.line else finding.file.name
        yield f"The record is {finding.verdict}. {place}: {finding.reason}."
    if broken or manifest.digest is None:
        last = run.points[-1].at if run.points else None
        yield f"The page shows the run up to {moment(last)} UTC, the last time with complete records."
    for rule in run.report.entries_halted:
        yield f"Entries are halted by {rule} since {_halted_since(run.report, rule)}. Exits are let through."
    if manifest.interrupted:
        yield "The run was interrupted. The page shows it up to its last closed bar."


def _halted_since(report: RunReport, rule: str) -> str:
    """Return the close at which a limit was last reached, with its equity."""
    for change in reversed(report.entry_changes):
        if change.kind == "tripped" and rule in change.rules and change.at is not None:
            return f"{moment(change.at)} UTC, at an equity of {money(change.equity)}"
    return "the errors of the agent"


def _claim(run: RunOnRecord) -> str:
    if run.report.provider == "rules":
        return f"{origin_of_sample(run)} This is one run of one period."
    if is_after_cutoff(run):
        return "The period is after the training cutoff of the model, but this is one run of one period."
    return "The model may have seen this period in training, and this is one run of one period."


def _tiles(run: RunOnRecord, terms: ReportTerms, trips: Sequence[RoundTrip]) -> Iterator[Tile]:
    report, currency = run.report, run.currency
    first_cost = sum(each.first_cost_nusd for each in run.attempts)
    # The first cost counts, because an answer from a recording costs nothing when it is read again.
    is_recorded = first_cost != report.cost_nusd
    yield Tile("P&L after fees", money(report.pnl), currency, _tone(report.pnl))
    note = f"USD, of the recorded calls. This run paid {dollars(report.cost_nusd)}" if is_recorded else "USD"
    yield Tile("cost of inference", dollars(first_cost), note)
    if terms.rate is None:
        missing = f"not shown: P&L is in {currency}. Pass --inference-rate USD{currency}=RATE"
        yield Tile("P&L net of inference", ABSENT, missing)
    else:
        net = terms.rate.net(report.pnl, first_cost)
        assumed = "" if currency == DOLLARS[0] else f", at 1 USD = {terms.rate.per_usd} {currency}"
        yield Tile("P&L net of inference", money(net), f"{currency}{assumed}", _tone(net))
    yield Tile("buy and hold", money(report.buy_and_hold_pnl), f"{currency}, after fees")
    fall = report.performance.max_drawdown if report.performance else None
    yield Tile("largest drawdown", ABSENT if fall is None else f"{fall:.2%}", "from an earlier peak")
    closed = [trip for trip in trips if trip.closed]
    won = sum(trip.pnl > 0 for trip in closed)
    yield Tile("round trips", f"{len(closed):,}", f"{won:,} with a gain")
    each = dollars(first_cost // len(closed)) if closed else ABSENT
    yield Tile("inference per round trip", each, "USD, of all calls")
    yield Tile("fees", f"{report.fees:,.2f}", f"{currency}, for {pluralize(report.fills, 'fill')}")


def _charts(run: RunOnRecord, trips: Sequence[RoundTrip], rate: InferenceRate | None) -> dict[str, Any]:
    if not run.points:
        return {"equity": (), "drawdown": (), "legend": (), "prices": ()}
    equity, drawdown = equity_charts(run, rate)
    ends = run.points[-1]
    legend = [("session", f"this session, {ends.equity:,.2f}"), ("held", f"buy and hold, {ends.held:,.2f}")]
    if rate is not None and (net := net_equity(run, rate)):
        legend.append(("net", f"net of inference, {net[-1]:,.2f}"))
    if not run.is_portfolio:
        legend.append(("market", f"the same intents as market orders, {ends.market_now:,.2f}"))
    return {
        "equity": equity,
        "drawdown": drawdown,
        "legend": tuple(legend),
        "prices": tuple(price_charts(run, trips)),
    }


def _plans(run: RunOnRecord) -> Iterator[tuple[str, ...]]:
    for plan in run.report.plans:
        chosen = ", ".join(
            f"{words(name)} {value}" for name, value in plan.params.items() if name != "strategy_type"
        )
        skill = ABSENT if plan.deflated_sharpe is None else f"{plan.deflated_sharpe:.2f}"
        yield moment(plan.as_of), words(plan.regime), chosen, f"{plan.tried:,}", skill


def _table(name: str, counts: Mapping[str, int], tone: str = "") -> CountTable:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    most = max(counts.values(), default=0)
    return CountTable(
        name, tuple(CountBar(words(key), f"{n:,}", bar_shape(n, most)) for key, n in ordered), tone
    )


def _decisions(run: RunOnRecord) -> Iterator[CountTable]:
    for workflow, verdicts in run.report.decisions.items():
        yield _table(f"Decisions, {workflow}", verdicts)
    reasons = Counter[str]()
    for workflow, counts in run.report.no_decisions.items():
        reasons.update({f"{workflow}: {reason}": n for reason, n in counts.items()})
    yield _table("No decision, by reason", reasons, "warn")


def _calls(run: RunOnRecord) -> Iterator[CountTable]:
    yield _table("Attempts, by outcome", run.report.attempts_by_outcome)
    costs = cost_by(run.attempts, "workflow")
    most = max(costs.values(), default=0)
    bars = [CountBar(name, f"{dollars(n)} USD", bar_shape(n, most)) for name, n in costs.most_common()]
    yield CountTable("Cost of inference, by workflow", tuple(bars), "warn")


def _facts(run: RunOnRecord) -> Iterator[NamedText]:
    report, sent = run.report, [each for each in run.attempts if each.sent]
    yield NamedText("attempts", f"{report.attempts:,}, of which {report.sent:,} were sent")
    yield NamedText("tokens", f"{report.input_tokens:,} in, {report.output_tokens:,} out")
    yield NamedText("latency", _latency(sent))
    fixed = sum(each.fixes > 0 for each in run.attempts)
    yield NamedText(
        "answers repaired", f"{fixed:,}, with {pluralize(sum(e.fixes for e in run.attempts), 'change')}"
    )
    yield NamedText(
        "in doubt", f"{pluralize(report.in_doubt, 'call')}, charged in full" if report.in_doubt else "0"
    )
    for kind, outcomes in report.injected.items():
        found = [f"{n:,} {FAULT_OUTCOMES.get(name, name)}" for name, n in outcomes.items()]
        yield NamedText(f"injected {FAULT_NAMES.get(kind, words(kind))}", " · ".join(found) or "0")
    orders = (
        f"{report.orders:,} sent, {pluralize(report.fills, 'fill')}, fees {report.fees:,.2f} {run.currency}"
    )
    yield NamedText("orders", orders)


def _latency(sent: Sequence[AttemptOnRecord]) -> str:
    ordered = sorted(each.latency_ms for each in sent)
    if not ordered:
        return ABSENT
    places = [(percent, ordered[(len(ordered) - 1) * percent // 100]) for percent in QUANTILES]
    (_, median), *others = [(percent, f"{value:,.0f} ms") for percent, value in places]
    return ", ".join([f"median {median}", *(f"{percent} % within {value}" for percent, value in others)])


def _trip(run: RunOnRecord, trip: RoundTrip) -> TripRow:
    why = f"agentic-trading trace why {trip.fill_id[:PREFIX]} --store {quote(str(run.folder.path))}"
    return TripRow(
        symbol=trip.symbol,
        side=f"{'long' if trip.is_long else 'short'} {trip.quantity.normalize():f}",
        opened=moment(trip.opened),
        closed=moment(trip.closed) if trip.closed else "still open",
        ended_by=words(trip.ended_by) or ABSENT,
        pnl=money(trip.pnl),
        tone=_tone(trip.pnl),
        fees=f"{trip.fees:,.2f}",
        inference=dollars(trip.inference_nusd),
        why=why,
    )


def _trips_note(run: RunOnRecord, trips: Sequence[RoundTrip]) -> str:
    used = sum(trip.inference_nusd for trip in trips)
    rest = sum(each.first_cost_nusd for each in run.attempts) - used
    shown = f"The first {MOST_TRIPS} of {len(trips):,}. " if len(trips) > MOST_TRIPS else ""
    return (
        f"{shown}P&L is after fees, in {run.currency}. Inference is the cost of the calls that led to the trades. "
        f"A call that led to several round trips counts for the first. Other calls cost {dollars(rest)} USD."
    )


def _period(period: EquityPeriod) -> PeriodRow:
    return PeriodRow(period.name, f"{period.share:+.2%}", money(period.pnl), _tone(period.pnl))


def _record(run: RunOnRecord) -> Iterator[NamedText]:
    manifest = run.manifest
    digest = f"sha256:{manifest.digest}" if manifest.digest else "none, because the run has not ended"
    yield NamedText("decision log", digest, is_code=True)
    if len(run.bars_sha256) <= MOST_DIGESTS:
        for symbol, found in run.bars_sha256.items():
            yield NamedText(f"bars of {symbol}", f"sha256:{found}", is_code=True)
    else:
        yield NamedText(
            "bars", f"{len(run.bars_sha256)} files. Their checksums are in the record run.ended of the log"
        )
    yield NamedText(
        "configuration",
        f"sha256:{manifest.config_sha256}" if manifest.config_sha256 else ABSENT,
        is_code=True,
    )
    yield NamedText(
        "log", f"{run.log.verdict}, {pluralize(run.log.lines, 'line')}, head {run.log.head}", is_code=True
    )
    yield NamedText("package", f"agentic-trading {manifest.package}")
    yield NamedText("seed", manifest.seed)
    yield NamedText("faults injected", manifest.inject or "0")


def _commands(run: RunOnRecord) -> Iterator[NamedText]:
    folder, number = quote(str(run.folder.path)), run.report.run_number
    which = f" --run {number}" if number > 1 else ""
    incomplete = "" if run.manifest.digest else " --allow-incomplete"
    # The folder never chooses code, so that a replay needs an own agent or family named.
    options = f"{which}{run.report.named_again}{incomplete}"
    yield NamedText("The same decisions, offline", f"agentic-trading replay run {folder}{options}")
    yield NamedText("A check of the record", f"agentic-trading audit verify {folder}")

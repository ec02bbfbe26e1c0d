"""The summary of a finished run, and the verdict of a replay, as text."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import zip_longest
from shlex import quote
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from agentic_trading.cli import output
from agentic_trading.desk.execution.events import IntentDenied
from agentic_trading.desk.market.samples import PANELS
from agentic_trading.desk.metrics import Performance
from agentic_trading.desk.planning.events import PlanChosen
from agentic_trading.desk.session import report as reports
from agentic_trading.desk.session.replay import ReplayReport
from agentic_trading.desk.session.report import DataReport, MarketYear, RefusedBudget, RunReport
from agentic_trading.operate.budget_log import GOVERNED
from agentic_trading.operate.choices import pluralize
from agentic_trading.operate.lines import format_time, printable, usd

RULES: Final = "rules"
LOCAL: Final = "local"
SHORTFALL: Final = "shortfall"
IN_SAMPLE: Final = "no: the rules were written with this sample in view"
MOST_YEARLY: Final = 100.0
"""Largest yearly rate that is printed, as a fraction. A larger rate means that the session was too short."""
A_DAY: Final = timedelta(days=1)


def summary(report: RunReport, *, has_page: bool = False) -> RenderableType:
    """Return the summary of a run: market, result, decisions, calls, orders, files, and next commands.

    With `has_page`, the page of the run is written anyway, and its command is left out.
    """
    return Group(
        Text(
            f"Session {report.session_id} · run {report.run_number} · {report.mode} · {_who(report)}", "bold"
        ),
        output.heading("Market"),
        output.facts(_market(report)),
        output.heading("Result, in the quote currency"),
        _result(report),
        Text(),
        output.facts(_reading(report)),
        output.heading("Decisions"),
        output.facts(_decisions(report)),
        output.heading("Calls"),
        output.facts(_calls(report)),
        output.heading("Orders"),
        output.facts(_orders(report)),
        output.heading("Files"),
        output.facts(_record(report)),
        output.unbroken("digest", f"sha256:{report.digest}"),
        output.heading("Next"),
        *(output.command_line(command) for command in next_steps(report, has_page=has_page)),
    )


def next_steps(report: RunReport, *, has_page: bool = False) -> list[str]:
    """Return commands that show more of the run."""
    session = quote(str(report.log.parent))
    why = (
        [f"agentic-trading trace why {report.first_fill_id} --store {session}"]
        if report.first_fill_id
        else []
    )
    run = f" --run {report.run_number}" if report.run_number > 1 else ""
    reasons = {reason for skipped in report.no_decisions.values() for reason in skipped}
    refused = [f"agentic-trading budget history --store {session}"] if reasons & GOVERNED else []
    # The chain of each has the rule with the refused and the allowed value.
    listed = f"agentic-trading trace list --all --kind {IntentDenied.KIND} --store {session}"
    denied = [listed] if report.intents_rejected else []
    command = f"agentic-trading resume --entries {report.session_id} --store {session}"
    resume = [command] if report.entries_halted and report.mode == "paper" else []
    page = [] if has_page else [f"agentic-trading report {session}{run}"]
    return [
        *why,
        *resume,
        *refused,
        *denied,
        *page,
        f"agentic-trading trace list --store {session}",
        f"agentic-trading spend --by workflow,model --store {session}",
        f"agentic-trading replay run {session}{run}{report.named_again} --workers 8",
    ]


def _who(report: RunReport) -> str:
    who = f"{report.provider} ({report.model})" if report.model else report.provider
    ended = "interrupted after" if report.interrupted else "done in"
    return f"{who} · {ended} {report.elapsed_s:.1f} s"


def _market(report: RunReport) -> Iterator[tuple[str, str]]:
    if report.data[0].name in PANELS:
        yield from _panel(report.data)
        return
    for fed in report.data:
        yield (
            fed.symbol,
            f"{pluralize(fed.bars, 'bar')}, {format_time(fed.first)} to {format_time(fed.last)} UTC, from {fed.name}",
        )
        yield from _notes(fed)


def _panel(data: Sequence[DataReport]) -> Iterator[tuple[str, str]]:
    """Yield the span of a sample of many stocks, the stocks that lack days, and those that ended early."""
    # `last` is a close. A daily bar closes at midnight, so that its own day is the one before.
    bars, last = sum(fed.bars for fed in data), max((fed.last for fed in data if fed.last), default=None)
    first = min((fed.first for fed in data if fed.first), default=None)
    yield (
        data[0].name,
        f"{pluralize(len(data), 'stock')}, {pluralize(bars, 'bar')}, {first:%Y-%m-%d} to {last - A_DAY:%Y-%m-%d}"
        if first and last
        else "no bar",
    )
    if lacking := [fed.symbol for fed in data if fed.gaps]:
        yield "", f"days missing: {', '.join(lacking)}"
    if ended := [
        f"{fed.symbol} on {fed.last - A_DAY:%Y-%m-%d}" for fed in data if fed.last and fed.last != last
    ]:
        yield "", f"last bar before the end: {', '.join(ended)}"


def _notes(fed: DataReport) -> Iterator[tuple[str, str]]:
    for line in output.capped([f"gap: {gap}" for gap in fed.gaps]):
        yield "", line
    for line in output.capped([f"quiet: {quiet}" for quiet in fed.quiet]):
        yield "", line
    if fed.companion:
        yield "", f"reference market, because no other market was given: {fed.companion}"
    left_out = {
        "repeated bars": fed.duplicates,
        "unclosed bars": pluralize(fed.unclosed, "row") if fed.unclosed else 0,
        "late bars": fed.late,
    }
    yield from (("", f"{kind}: {number}, left out") for kind, number in left_out.items() if number)
    if fed.silences:
        yield "", f"silent feed: {pluralize(fed.silences, 'time')}"
    if fed.unread:
        yield "", f"columns not read: {', '.join(output.capped(fed.unread))}"


def _result(report: RunReport) -> Table:
    figures = output.table("", "P&L", "return", SHORTFALL, right=("P&L", "return", SHORTFALL))
    figures.columns[0].min_width = 30
    money = [
        ("this run", report.pnl, _bps(report.shortfall.total.total_bps)),
        ("market orders instead", report.market_now_pnl, _bps(report.shortfall.market_now.total_bps)),
        ("buy and hold", report.buy_and_hold_pnl, ""),
    ]
    if report.data[0].name in PANELS:
        # A plan sends market orders only, so that this line would repeat the one before it.
        del money[1]
    return output.rows(
        figures, (("  " + name, _signed(pnl), _share(pnl, report), bps) for name, pnl, bps in money)
    )


def _signed(amount: Decimal) -> str:
    return f"{amount:+,.2f}"


def _bps(amount: Decimal | None) -> str:
    return "-" if amount is None else f"{amount:+.2f} bps"


def _share(pnl: Decimal, report: RunReport) -> str:
    return f"{pnl / report.equity_start * 100:+.2f} %" if report.equity_start else "-"


def _reading(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield how to read the figures: risk, assumptions, and whether the period was known beforehand."""
    yield from _net(report)
    if report.performance is not None:
        yield "risk", _risk(report.performance, report.year)
    if report.net_performance is not None:
        yield "risk, net", _risk(report.net_performance, report.year)
    if report.assumed:
        yield "assumptions", " · ".join(report.assumed)
    if report.provider == RULES:
        # The stocks of a sample have one line together, because they all come from the same file.
        is_panel = report.data[0].name in PANELS
        fed_as = {fed.name if is_panel else fed.symbol: fed for fed in report.data}
        for name, fed in fed_as.items():
            own = "agent" if report.agent else "family" if report.family else "data"
            is_shipped = fed.is_sample and own == "data"
            yield f"out of sample, {name}", IN_SAMPLE if is_shipped else f"unknown: your own {own}"
    else:
        calls = {reports.KNOWLEDGE.get(mark, mark): calls for mark, calls in report.knowledge.items()}
        yield "P&L by training cutoff", f"in calls: {output.counts(calls)}"


def _net(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield the P&L net of inference, and the round trips with the most expensive inference."""
    if not report.inference_nusd:
        return
    cost = f"inference {usd(report.inference_nusd)} USD"
    if report.net_pnl is None:
        yield "net of inference", f"-, {cost}: for a P&L in {report.currency}, pass --inference-rate"
    else:
        yield "net of inference", f"{_signed(report.net_pnl)} {report.currency}, after {cost}"
    dearest = sorted(report.trades, key=lambda trade: trade.inference_nusd, reverse=True)
    lines = [
        f"{usd(trade.inference_nusd)} USD: {trade.side} {trade.quantity} {trade.symbol}, P&L {_signed(trade.pnl)}"
        for trade in dearest
        if trade.inference_nusd
    ]
    yield from zip_longest(["inference by trade"] if lines else [], output.capped(lines), fillvalue="")
    if lines:
        rest = report.inference_nusd - sum(trade.inference_nusd for trade in report.trades)
        yield "", f"{usd(rest)} USD for calls without a trade"


def _risk(figures: Performance, year: MarketYear | None) -> str:
    """Return the drawdown and the yearly figures of the account, even for a session of less than a year."""
    factor = _factor(figures, year) if year and figures.bars else ""
    drawdown, cagr = map(_percent, (figures.max_drawdown, figures.cagr))
    ratios = {"Sharpe": figures.sharpe, "Sortino": figures.sortino, "turnover": figures.turnover}
    spelled = ", ".join(f"{name} {'-' if of is None else f'{of:,.2f}'}" for name, of in ratios.items())
    return f"largest drawdown {drawdown} · per year{factor}, from {pluralize(figures.bars, 'bar')}: return {cagr}, {spelled}"


def _factor(figures: Performance, year: MarketYear) -> str:
    """Return the factor from the session to a year, with the parts of the year."""
    times = year.sessions * year.bars_per_session / figures.bars
    return f" (x {times:,.3g}: {year.sessions} sessions of {pluralize(year.bars_per_session, 'bar')})"


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{100 * share:+,.2f} %" if share <= MOST_YEARLY else f"above {100 * MOST_YEARLY:,.0f} %"


def _decisions(report: RunReport) -> Iterator[tuple[str, str]]:
    for workflow, verdicts in report.decisions.items():
        yield workflow, output.counts(verdicts)
    for plan in report.plans:
        yield f"  {format_time(plan.as_of)}", _plan(plan)
    if report.data[0].name not in PANELS and not report.agent:
        yield "planning", "not available for this data"
    for workflow, reasons in report.no_decisions.items():
        yield f"no decision, {workflow}", output.counts(reasons)
    if not any(report.no_decisions.values()):
        yield "no decision", "none"
    for refused in report.refused_budgets:
        yield (
            "refused by budget",
            f"{refused.scope}: {pluralize(refused.calls, 'attempt')}{_shortfall(refused)}",
        )
    yield "triggers skipped", output.counts(report.skips)


def _plan(plan: PlanChosen) -> str:
    """Return the market regime of a plan, its set, and the probability that the set is better than luck."""
    chosen = " · ".join(f"{name} {value}" for name, value in plan.params.items() if name != "strategy_type")
    skill = "-" if plan.deflated_sharpe is None else f"{plan.deflated_sharpe:.2f}"
    return f"{plan.regime}: {chosen} · best of {plan.tried}, deflated Sharpe {skill}"


def _shortfall(refused: RefusedBudget) -> str:
    if refused.left is None or refused.asked is None:
        return ""
    spell = usd if refused.unit == "nano-USD" else "{:,}".format
    unit = "USD" if refused.unit == "nano-USD" else refused.unit
    return f", the first with {spell(refused.left)} {unit} left and up to {spell(refused.asked)} needed"


def _calls(report: RunReport) -> Iterator[tuple[str, str]]:
    yield "attempts", f"{report.attempts:,}: {output.counts(report.attempts_by_outcome)}"
    if report.sent:
        share = report.accepted / report.sent * 100
        yield "accepted", f"{report.accepted:,} of {pluralize(report.sent, 'attempt')} sent ({share:.0f} %)"
    if report.max_calls is not None:
        refused = report.sent > report.max_calls
        unheard = ", without attempts that were refused or could not connect" if refused else ""
        yield "calls allowed", f"{report.max_calls:,} (--max-calls){unheard}"
    for kind, outcomes in report.injected.items():
        hits = sum(outcomes.values())
        named = {reports.FAULT_OUTCOMES.get(outcome, outcome): number for outcome, number in outcomes.items()}
        yield (
            f"injected {reports.FAULT_NAMES.get(kind, kind)}",
            f"{hits:,}: {output.counts(named)}" if hits else "0",
        )
    yield "tokens", f"{report.input_tokens:,} in · {report.output_tokens:,} out"
    share = report.cost_nusd / report.budget_nusd * 100 if report.budget_nusd else 0.0
    who = {RULES: "rules are", LOCAL: "a local model is"}.get(report.provider)
    free = (
        f", {who} free and --budget-usd applies only to priced models" if who and not report.cost_nusd else ""
    )
    yield (
        "cost",
        f"{usd(report.cost_nusd)} of {usd(report.budget_nusd)} USD ({share:.1f} %){free}",
    )
    for each in report.unpriced:
        charged = f"{pluralize(each.attempts, 'attempt')} of {each.model} charged the reserved amount"
        yield "no price", f"{each.word}: {charged}. To fix this, {each.add}"
    for problem, number in report.bill_problems.items():
        yield "bill not read", f"{pluralize(number, 'attempt')}: {problem}"
    if report.in_doubt:
        yield (
            "in doubt",
            f"{pluralize(report.in_doubt, 'call')} that may have been billed, charged in full",
        )


def _orders(report: RunReport) -> Iterator[tuple[str, str]]:
    refused = sum(report.intents_rejected.values())
    why = f" ({output.counts(report.intents_rejected)})" if refused else ""
    yield "intents", f"{report.intents:,} · refused by pre-trade limits {refused:,}{why}"
    yield "sent", f"orders {report.orders:,} · fills {report.fills:,} · fees {report.fees:,.2f}"
    yield from _filling(report)
    yield from _entry_changes(report)
    if report.orders_refused:
        refused = sum(report.orders_refused.values())
        yield (
            "refused",
            f"{pluralize(refused, 'order')} by the exchange ({output.counts(report.orders_refused)})",
        )
    if report.cancelled:
        yield "cancelled", f"{sum(report.cancelled.values()):,}: {output.counts(report.cancelled)}"
    for order in report.working:
        left = f"{order.side} {order.left} {order.symbol} {order.order_type}"
        yield "still working", f"{left}, until {format_time(order.expires_at)}"
    for held in report.open_positions:
        yield (
            "open at the end",
            f"{held.quantity:+} {held.symbol} at {held.mark}, unrealised {_signed(held.unrealised)}",
        )
    yield "equity", f"{report.equity_start:,.2f} to {report.equity_end:,.2f}"


def _entry_changes(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield the loss limits that were reached, and the resumes of entries."""
    lines = []
    for each in report.entry_changes:
        at, rules = format_time(each.at), ", ".join(each.rules)
        if each.kind == "tripped":
            lines.append(f"{at} {rules} reached: equity {each.equity:,.2f}, floor {each.floor:,.2f}")
        else:
            lines.append(f"{at} resumed by {each.by or 'the next day'}, equity {each.equity:,.2f}")
    yield from zip_longest(["loss limits"] if lines else [], output.capped(lines), fillvalue="")
    if report.entries_halted:
        yield "entries", f"halted by {', '.join(report.entries_halted)}"


def _filling(report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield the cost of filling against the prices at the decision: the total and the largest ones."""
    total = report.shortfall.total
    if total.total_bps is None:
        return
    how_far = {"full": total.whole, "partial": total.in_part, "none": total.not_at_all}
    yield "intents filled", output.counts({name: number for name, number in how_far.items() if number})
    parts = f"prices {_signed(total.price_cost)}, fees {total.fees:,.2f}"
    yield SHORTFALL, f"{_bps(total.total_bps)} of {total.arrival_value:,.2f}: {parts}"
    filled = [each for each in report.shortfall.intents if each.total_bps is not None]
    largest = sorted(filled, key=lambda each: each.price_cost + each.fees, reverse=True)
    lines = [f"{_bps(each.total_bps)}: {each.side} {each.filled} {each.symbol}" for each in largest]
    yield from zip_longest(["largest shortfall"], output.capped(lines), fillvalue="")


def _record(report: RunReport) -> Iterator[tuple[str, str]]:
    yield "log", str(report.log)
    yield "decision log", str(report.decision_log)
    if report.run_number > 1:
        own = f"run {report.run_number} has its own ids, so its digest differs from those of earlier runs"
        yield "", f"{own}. To check this run, use `replay run`"


def comparison(report: ReplayReport) -> RenderableType:
    """Return the verdict of a replay, its digests and counts, and the first difference if there is one."""
    verdict = (
        Text("identical, byte for byte", "bold green") if report.identical else Text("different", "bold red")
    )
    return Group(
        verdict,
        output.unbroken("record", f"sha256:{report.recorded_digest}"),
        output.unbroken("replay", f"sha256:{report.digest}"),
        output.facts(_grounds(report)),
    )


def _grounds(report: ReplayReport) -> Iterator[tuple[str, str]]:
    yield "session", f"{report.session_id}, run {report.run_number}"
    yield "bars", f"{report.bars:,} · {report.workers} workers · network blocked"
    yield (
        "responses",
        f"{report.answered:,} replayed · {report.misses:,} missing · {report.unused:,} unused",
    )
    if report.first_difference is not None:
        yield "first difference", printable(report.first_difference)
    for change in report.request_changes:
        yield "cause", printable(change)

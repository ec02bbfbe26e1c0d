"""The card of assumptions: the limits of a run's figures, each with its value."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from agentic_trading.desk.inference import DOLLARS, InferenceRate
from agentic_trading.desk.metrics import deflated_sharpe_of, returns_of
from agentic_trading.desk.report.record import RunOnRecord
from agentic_trading.desk.session.report import KNOWLEDGE
from agentic_trading.desk.session.round_trips import RoundTrip
from agentic_trading.operate.choices import pluralize


@dataclass(frozen=True, slots=True)
class ReportTerms:
    """The terms of a report.

    Attributes:
        rate: The price of a dollar in the quote currency, or None if it is unknown.
        trials: The number of tried strategies, prompts and seeds, or None if it is unknown.

    """

    rate: InferenceRate | None = None
    trials: int | None = None


@dataclass(frozen=True, slots=True)
class AssumptionRow:
    """An assumption: its name, its value, and the reason."""

    name: str
    value: str
    text: str


def assumption_rows(
    run: RunOnRecord, trips: Sequence[RoundTrip], terms: ReportTerms
) -> Iterator[AssumptionRow]:
    """Yield the card of a run."""
    report = run.report
    yield sample_row(run)
    yield AssumptionRow(
        "no look-ahead",
        "enforced in part",
        "Evidence after the time of a decision is refused, and an order is filled by a later bar. "
        "The text of instructions cannot be checked.",
    )
    fills = [each for each in report.assumed if "fees" not in each and "to start with" not in each]
    yield AssumptionRow(
        "fills",
        "assumed",
        f"On paper: {', '.join(fills)}. A limit is filled when a bar trades through it, up to a share of the volume. No queue and no further impact.",
    )
    fees = next((each for each in report.assumed if "fees" in each), "no fees")
    yield AssumptionRow(
        "costs",
        "counted in part",
        f"Counted: {fees}, together {report.fees:,.2f} {run.currency}, and inference. Not counted: borrowing, funding and taxes.",
    )
    yield _trials(run, terms.trials)
    yield AssumptionRow(
        "repeated runs", "1 run, 1 seed", "The spread over seeds and repeated answers is unknown."
    )
    yield _length(run, trips)
    yield _baselines(run)
    missing = sum(sum(counts.values()) for counts in report.no_decisions.values())
    yield AssumptionRow(
        "failed calls",
        f"{missing:,} left out",
        "A call without an accepted answer gives no decision. It never becomes HOLD, flat or a default.",
    )
    books = sorted({each.price_book for each in run.attempts if each.price_book})
    priced = f"From the price book {', '.join(books)}. " if books else ""
    yield AssumptionRow("token prices", "not checked", f"{priced}The cost was not compared with an invoice.")
    yield _rate(run, terms.rate)


def sample_row(run: RunOnRecord) -> AssumptionRow:
    """Return whether the run is out of sample."""
    report = run.report
    if report.provider == "rules":
        is_known = not report.agent and any(each.is_sample for each in report.data)
        return AssumptionRow("out of sample", "no" if is_known else "unknown", origin_of_sample(run))
    is_after = is_after_cutoff(run)
    calls = ", ".join(f"{n:,} {KNOWLEDGE.get(mark, mark)}" for mark, n in report.knowledge.items())
    value = "yes" if is_after else "no" if report.knowledge.get("in_sample") else "unknown"
    return AssumptionRow(
        "out of sample", value, f"Sent calls: {calls or 0}. A cutoff is the vendor's statement."
    )


def origin_of_sample(run: RunOnRecord) -> str:
    """Return where the bars and the rules of a run without a model are from."""
    if run.report.agent:
        return "The rules are those of your own agent."
    if any(each.is_sample for each in run.report.data):
        return "The bars ship with the package, and the rules were written with them in view."
    return "The bars are your own data."


def is_after_cutoff(run: RunOnRecord) -> bool:
    """Return whether all sent calls are about a time after the training cutoff of their model."""
    return bool(run.report.knowledge.get("post_cutoff") == sum(run.report.knowledge.values()) > 0)


def _trials(run: RunOnRecord, trials: int | None) -> AssumptionRow:
    if trials is None:
        return AssumptionRow(
            "trials",
            "1 of unknown",
            "The record has this run only, not the prompts, models and seeds that were tried before it. "
            "With the option --trials N, the page has the deflated Sharpe ratio.",
        )
    probability = skill_after(run, trials)
    skill = "-" if probability is None else f"{probability:.3f}"
    return AssumptionRow(
        "trials",
        f"1 of {trials:,}",
        f"Deflated Sharpe ratio {skill}: the probability of skill after {pluralize(trials, 'trial')}. The ratios of the others are not on record, and are assumed to differ as those of strategies without skill.",
    )


def skill_after(run: RunOnRecord, trials: int) -> float | None:
    """Return the probability of skill after `trials` tries, or None if the equity does not move."""
    equity = [float(run.report.equity_start), *(float(point.equity) for point in run.points)]
    return deflated_sharpe_of(returns_of(equity), trials) if min(equity) > 0 else None


def _length(run: RunOnRecord, trips: Sequence[RoundTrip]) -> AssumptionRow:
    figures, year = run.report.performance, run.report.year
    if figures is None or year is None or not figures.bars:
        return AssumptionRow("length", "0 bars", "The run has no bar.")
    # The error of a yearly Sharpe ratio is about 1 / sqrt(years), because the ratio of a bar has 1 / sqrt(bars).
    years = figures.bars / (year.sessions * year.bars_per_session)
    closed = sum(trip.closed is not None for trip in trips)
    sharpe = "-" if figures.sharpe is None else f"{figures.sharpe:.2f}"
    text = f"{pluralize(figures.bars, 'close')}, {pluralize(closed, 'round trip')}. Sharpe ratio {sharpe} per year, with a standard error of about {1 / sqrt(years):.1f}."
    net = run.report.net_performance
    if net is not None and net.sharpe is not None:
        text += f" Net of inference it is {net.sharpe:.2f}."
    return AssumptionRow("length", f"{years:.3f} years", text)


def _baselines(run: RunOnRecord) -> AssumptionRow:
    held = "buy and hold, with fees"
    if run.is_portfolio:
        return AssumptionRow(
            "baselines", "1", f"{held}: an equal part of the cash in each stock.".capitalize()
        )
    return AssumptionRow("baselines", "2", f"{held}, and the same intents as market orders.".capitalize())


def _rate(run: RunOnRecord, rate: InferenceRate | None) -> AssumptionRow:
    if rate is None:
        text = f"P&L is in {run.currency}, and inference in USD. Without a rate, P&L net of inference is not shown. Pass the option --inference-rate USD{run.currency}=RATE."
        return AssumptionRow("exchange rate", "unknown", text)
    if run.currency == DOLLARS[0]:
        return AssumptionRow("exchange rate", "none needed", "P&L and inference are in USD.")
    value = f"1 USD = {rate.per_usd} {run.currency}"
    return AssumptionRow("exchange rate", value, "An assumption, the same for the whole run.")

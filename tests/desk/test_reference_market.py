"""The reference market of a session that is fed only one market."""

from decimal import Decimal

from agentic_trading.desk.market.bar import Bar, Timeframe
from agentic_trading.desk.market.samples import load_sample
from agentic_trading.desk.market.snapshot import MarketView
from agentic_trading.desk.time_slices import ReferenceMarketFeed

OWN, OTHER = load_sample("btcusdt-5m")[:400], load_sample("ethusdt-5m")[:800]


def reference_feed() -> ReferenceMarketFeed:
    return ReferenceMarketFeed(OWN, OTHER, decision=Timeframe.H1)


def dearer(bar: Bar) -> Bar:
    return bar.model_copy(update={"high": bar.high + Decimal("0.01")})


def test_reference_equals_view_of_other_market() -> None:
    reference, view = reference_feed(), MarketView("ETHUSDT")

    for own, other in zip(OWN, OTHER[:400], strict=True):
        reference.push(own)
        view.push(other)
        assert reference.reference_market(own.close_time) == view.reference_market(own.close_time)


def test_reference_includes_closes_before_start() -> None:
    reference = reference_feed()

    reference.push(OWN[200])

    second = reference.reference_market(OWN[200].close_time)
    assert second is not None
    assert len(second.closes) == 16


def test_reference_ends_at_first_mismatched_bar() -> None:
    reference = reference_feed()
    reference.push(OWN[0])

    reference.push(dearer(OWN[1]))
    reference.push(OWN[2])

    assert reference.reference_market(OWN[2].close_time) is None
    assert reference.seen_until == OWN[0].close_time


def test_mismatched_first_bar_gives_no_reference() -> None:
    reference = reference_feed()

    reference.push(dearer(OWN[0]))

    assert reference.seen_until is None

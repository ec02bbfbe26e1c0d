"""The page of the fleet: workers, logs, and a bus on a real server."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentic_trading.bus.codec import dead_letter_message, envelope_message
from agentic_trading.bus.message import Delivery, Message
from agentic_trading.bus.topic import DEAD_LETTERS, ENVELOPES, DeadLetter, topics_with
from agentic_trading.clock import SystemClock
from agentic_trading.monitor import fleet as fleet_page
from agentic_trading.monitor.sources import SourceOptions
from agentic_trading.platform import BusConfig, PlatformConfig
from tests.audit.reading import desk
from tests.gateway import asking
from tests.monitor.conftest import StartDashboard
from tests.monitor.fleet import Fleet
from tests.monitor.record_pages import add, in_thread
from tests.monitor.test_budgets import section_of, text_of
from tests.redis_bus import broker, make_topics
from tests.redis_server import namespace

pytestmark = pytest.mark.timeout(120)  # servers and workers are started

LANE = ENVELOPES[asking().build().workflow]
FIRST = datetime(2026, 11, 1, tzinfo=UTC)


def letter(n: int, reason: str) -> DeadLetter:
    """Return a dead letter, each one a minute younger than the one before."""
    delivery = Delivery("llm.envelopes.analysis", n, Message(f"k-{n}", b"{broken", {}), 1)
    return DeadLetter.of(
        delivery, reason=reason, detail=f"<b>not JSON {n}</b>", time=FIRST + timedelta(minutes=n)
    )


@pytest.fixture
def bus(redis_url: str) -> PlatformConfig:
    """Return the configuration of a bus with two waiting envelopes and 14 dead letters."""
    name = namespace()

    async def fill() -> None:
        await make_topics(redis_url, name, topics_with(()))
        async with aclosing(broker(redis_url, name)) as opened:
            readers = await opened.subscribe([LANE], "workers")
            await readers.aclose()
            for n in range(2):
                await opened.publish(LANE, envelope_message(asking(n=n).build(), sent_at=SystemClock().now()))
            for n in range(14):
                found = letter(n, "decode" if n else "crash_loop")
                await opened.publish(DEAD_LETTERS, dead_letter_message(found))

    asyncio.run(fill())
    return PlatformConfig(bus=BusConfig(url=redis_url, namespace=name))


def test_bus_has_its_lag_and_dead_letters(bus: PlatformConfig, dashboard: StartDashboard) -> None:
    html = dashboard(SourceOptions(bus=bus)).get("/fleet").text

    assert "workers llm.envelopes.analysis 2 0" in section_of(html, "Lag of the bus")
    words = section_of(html, "Dead letters: 14")
    assert "By reason: decode 13, crash_loop 1." in words
    assert words.index("not JSON 13") < words.index("not JSON 12")
    assert "not JSON 1</b>" not in words  # only the newest twelve are listed
    assert "<b>" not in html


def test_page_without_bus_has_no_section_of_it(fleet: Fleet, dashboard: StartDashboard) -> None:
    html = dashboard(SourceOptions((fleet.folder,), ledger_url=fleet.url)).get("/fleet").text

    assert "Lag of the bus" not in html
    assert "Dead letters" not in html
    for platform in fleet.platforms:
        assert str(platform.config.name) in section_of(html, "Logs")
    assert text_of(html).count("✓ runs") == 2


def test_one_tenant_sees_no_numbers_of_others(
    bus: PlatformConfig, fleet: Fleet, dashboard: StartDashboard
) -> None:
    options = SourceOptions((fleet.folder,), ledger_url=fleet.url, bus=bus, tenant="beta")
    html = dashboard(options).get("/fleet").text

    assert "Lag of the bus" not in html
    assert "Dead letters" not in html
    assert "admitted" not in html
    assert "w1 log - " in section_of(html, "Logs")


async def test_log_without_a_record_of_the_tenant_is_not_named(
    dashboard: StartDashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_page, "MOST_LOGS", 2)
    for number in range(3):
        await add(tmp_path / f"of-fund-{number}" / "interactions.jsonl", *desk("fund"))
    await add(tmp_path / "z-of-bank" / "interactions.jsonl", *desk("bank"))

    shown = dashboard(SourceOptions((tmp_path,), tenant="bank"))

    html = (await in_thread(shown.get, "/fleet")).text
    assert "z-of-bank" in html
    assert "of-fund" not in html
    assert "not listed" not in html


def test_bus_that_is_away_is_a_banner(dashboard: StartDashboard, fleet: Fleet) -> None:
    away = PlatformConfig(bus=BusConfig(url="redis://127.0.0.1:1", namespace="desk"))
    shown = dashboard(SourceOptions((fleet.folder,), ledger_url=fleet.url, bus=away))

    parts = shown.events("/events/fleet", lambda part: "cannot be read now" in part)

    assert "w1" in section_of(parts[-1], "Logs")
    assert shown.get("/fleet").status == 503
    assert shown.get("/").status == 200


def test_archive_is_named_as_one(fleet: Fleet, dashboard: StartDashboard, tmp_path: Path) -> None:
    options = SourceOptions(ledger_url=fleet.url, archive=fleet.folder / "w1")
    words = section_of(dashboard(options).get("/fleet").text, "Logs")

    assert "w1 archive" in words

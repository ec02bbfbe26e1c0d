"""Builders for gate tests: a gate over a ledger, and what it must answer."""

from typing import Any

from agentic_trading.clock import SimClock
from agentic_trading.governance.admission import Admitted, Deferred, Denied
from agentic_trading.governance.gate import Gate
from agentic_trading.governance.ledgers.memory import MemoryLedger
from agentic_trading.governance.limits import ANY, Limit, ScopeKind, Window
from agentic_trading.governance.prices import Amount, PriceBook
from agentic_trading.governance.rules import ClockMode
from agentic_trading.llm.errors import FailureKind
from agentic_trading.llm.models import Capabilities
from agentic_trading.llm.provider import ModelRequest
from agentic_trading.llm.result import Usage
from tests.build import NOW

PRICES = PriceBook.load()
CAPABILITIES = Capabilities.load()
# "Judge the market." and "{}" are 19 bytes, with 16 tokens of overhead 35 at 4000, then 1000 at 10000; all x 1.1
MOST_NUSD = (35 * 4000 + 1000 * 10_000) * 11 // 10
MOST = Amount(MOST_NUSD, 1035)
USAGE = Usage(input_tokens=10, output_tokens=100)
USED_NUSD = 10 * 2000 + 100 * 10_000


def tenant(nusd: int) -> Limit:
    return Limit(ScopeKind.TENANT, ANY, Window.NONE, nusd=nusd)


def gate(
    ledger: MemoryLedger, *, clock: SimClock | None = None, mode: ClockMode = "live", **more: Any
) -> Gate:
    return Gate(
        ledger=ledger,
        prices=PRICES,
        capabilities=CAPABILITIES,
        clock=clock or SimClock(NOW),
        mode=mode,
        **more,
    )


async def admitted(at: Gate, asked: ModelRequest) -> Admitted:
    answer = await at.admit(asked)
    assert isinstance(answer, Admitted), answer
    return answer


async def refused(at: Gate, asked: ModelRequest) -> FailureKind:
    answer = await at.admit(asked)
    assert isinstance(answer, Denied), answer
    return answer.reason.category


async def parked(at: Gate, asked: ModelRequest) -> Deferred:
    answer = await at.admit(asked)
    assert isinstance(answer, Deferred), answer
    return answer

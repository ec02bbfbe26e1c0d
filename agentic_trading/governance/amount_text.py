"""How amounts and limits are spelled for people: exact, and as short as that allows."""

from decimal import Decimal

from agentic_trading.governance.limit import Ceiling, Limit, ScopeKind, Unit
from agentic_trading.governance.windows import Window
from agentic_trading.llm.limits import NANO

NO_LIMIT = "no limit"


def usd_text(nusd: int) -> str:
    """Return nano-dollars in dollars, to the last digit: `25 USD`, `0.000000005 USD`."""
    return f"{(Decimal(nusd) / NANO).normalize():f} USD"


def amount_text(value: int, unit: Unit) -> str:
    """Return an amount with its unit; money is spelled in dollars: `0.5 USD`, `1 call`, `30 tokens`."""
    return usd_text(value) if unit == "nano-USD" else _counted(value, unit.removesuffix("s"))


def ceiling_text(ceiling: Ceiling) -> str:
    """Return what a ceiling allows: `25 USD, 1000 calls`."""
    parts = []
    if ceiling.nusd is not None:
        parts.append(usd_text(ceiling.nusd))
    if ceiling.tokens is not None:
        parts.append(_counted(ceiling.tokens, "token"))
    if ceiling.calls is not None:
        parts.append(_counted(ceiling.calls, "call"))
    return ", ".join(parts) or NO_LIMIT


def limited_text(scope: ScopeKind, id_: str, window: Window) -> str:
    """Return what a limit is on: `tenant * per day`, `trace * in all`."""
    return f"{scope} {id_} in all" if window is Window.NONE else f"{scope} {id_} per {window}"


def limit_text(limit: Limit) -> str:
    """Return a limit in one line: `tenant * per day: 25 USD, 1000 calls`."""
    return f"{limited_text(limit.scope, limit.id, limit.window)}: {ceiling_text(limit.ceiling)}"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"

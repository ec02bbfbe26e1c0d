"""Orders of an operator, from the words of a command to the board."""

from decimal import Decimal, InvalidOperation
from typing import TypeVar

from agentic_trading.app.budget.location import BudgetLocationOptions, budget_place
from agentic_trading.app.options import OptionError
from agentic_trading.app.settings import user_name
from agentic_trading.clock import SystemClock
from agentic_trading.governance.controls_document import TenantControls, HaltScope
from agentic_trading.governance.limit import ANY, LARGEST, Limit, ScopeKind
from agentic_trading.governance.commands import AddHalt, OperatorCommand, RemoveLimit, RemoveHalt, SetLimit, execute_command
from agentic_trading.governance.amount_text import usd_text
from agentic_trading.governance.windows import Window
from agentic_trading.llm.limits import NANO

Word = TypeVar("Word", ScopeKind, Window)


def halted(tenant: str, *, agent: str | None, workflow: str | None, model: str | None) -> AddHalt:
    """Return the order to halt one scope; raises `OptionError` for more than one."""
    return AddHalt(*_scope(tenant, agent, workflow, model))


def resumed(tenant: str, *, agent: str | None, workflow: str | None, model: str | None) -> RemoveHalt:
    """Return the order to take a halt back; raises `OptionError` for more than one scope."""
    return RemoveHalt(*_scope(tenant, agent, workflow, model))


def limited(
    scope: str, id_: str, window: str, *, usd: str | None, tokens: int | None, calls: int | None, remove: bool
) -> SetLimit | RemoveLimit:
    """Return the order to set or remove a limit.

    Raises `OptionError` for words that name nothing, and for a ceiling that cannot be.
    """
    kind = _word(ScopeKind, scope, "SCOPE")
    span = _word(Window, window, "--per")
    if remove:
        if (usd, tokens, calls) != (None, None, None):
            raise OptionError("--remove", "given together with a ceiling", "one or the other")
        return RemoveLimit(kind, id_, span)
    if (usd, tokens, calls) == (None, None, None):
        raise OptionError("the ceiling", "left out", "--usd, --tokens or --calls, one at least, or --remove")
    if not id_:
        raise OptionError("ID", "empty", f"the id of one {kind}, or {ANY!r} for each of them by itself")
    _check_range("--tokens", tokens)
    _check_range("--calls", calls)
    nusd = None if usd is None else _nusd(usd)
    return SetLimit(Limit(kind, id_, span, nusd=nusd, tokens=tokens, calls=calls))


async def execute(where: BudgetLocationOptions, tenant: str, wanted: OperatorCommand, why: str) -> TenantControls:
    """Have an order stand on the board of a place; workers follow within a second. Returns what stands there then.

    Raises `OrderError` for one that changes nothing or cannot be given, `ControlError` for a board that cannot be used.
    """
    async with budget_place(where) as place:
        return await execute_command(place.board, tenant, wanted, by=user_name(), why=why, at=SystemClock().now())


def _scope(tenant: str, agent: str | None, workflow: str | None, model: str | None) -> tuple[HaltScope, str]:
    named = [
        (scope, id_)
        for scope, id_ in (
            (HaltScope.AGENT, agent),
            (HaltScope.WORKFLOW, workflow),
            (HaltScope.MODEL, model),
        )
        if id_ is not None
    ]
    if len(named) > 1:
        (first, _), *others = named
        beside = " and ".join(f"--{scope}" for scope, _ in others)
        raise OptionError(
            f"--{first}", f"given together with {beside}", "one of them; orders hold side by side"
        )
    if not named:
        return HaltScope.TENANT, tenant
    _refuse_pattern(*named[0])
    return named[0]


def _refuse_pattern(scope: HaltScope, id_: str) -> None:
    """Refuse what looks like a pattern: it would be taken for a name, and stop nothing."""
    is_whole = id_ == ANY or (scope is HaltScope.MODEL and id_.endswith(f"/{ANY}"))
    if ANY in (id_[:-1] if is_whole else id_):
        every = f"a whole name, or {ANY!r} for every {scope}"
        allowed = f"{every}, or PROVIDER/{ANY}" if scope is HaltScope.MODEL else every
        raise OptionError(f"--{scope}", repr(id_), allowed)


def _word(words: type[Word], word: str, option: str) -> Word:
    try:
        return words(word)
    except ValueError:
        raise OptionError(option, repr(word), ", ".join(words)) from None


def _check_range(option: str, value: int | None) -> None:
    if value is not None and not 0 <= value <= LARGEST:
        raise OptionError(option, value, f"0 (nothing may run) to {LARGEST}")


def _nusd(usd: str) -> int:
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise OptionError("--usd", repr(usd), "an amount of dollars, such as 25 or 0.5")
    if not 0 <= amount <= Decimal(LARGEST) / NANO:
        raise OptionError("--usd", usd, f"0 (nothing that costs may run) to {usd_text(LARGEST)}")
    nusd = int(amount * NANO)
    if nusd != amount * NANO:
        raise OptionError("--usd", repr(usd), "whole nano-dollars: nine digits behind the point")
    return nusd

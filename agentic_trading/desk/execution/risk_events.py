"""Events of loss limits: a limit was reached, and entries are allowed again."""

from decimal import Decimal

from agentic_trading.llm.event import EventBody
from agentic_trading.llm.fields import Open
from agentic_trading.trading_limits import DailyResume, LossRule


class RiskTripped(EventBody, frozen=True):
    """A limit on the loss of the account was reached. From now on only exits are allowed.

    Attributes:
        rule: The limit.
        percent: The limit in percent of `base`.
        base: The equity that the loss is measured from.
        floor: The equity at which the limit is reached.
        equity: The equity at this close.
        day: The day of a daily limit, in the time zone `zone`. Empty for other limits.
        zone: The time zone. Empty for other limits.
        resume: Who allows entries again: an operator, or the next day.

    """

    KIND = "risk.tripped"

    rule: Open[LossRule]
    percent: Decimal
    base: Decimal
    floor: Decimal
    equity: Decimal
    day: str = ""
    zone: str = ""
    resume: Open[DailyResume] = "operator"


class RiskResumed(EventBody, frozen=True):
    """Entries are allowed again, after a limit on the loss of the account or after errors of the agent.

    Attributes:
        rules: The rules that halted entries until now.
        equity: The equity at this close. It is the new base of all limits, unless the next day has resumed.
        by: The operator. Empty for the next day.
        why: The reason of the operator.
        command_id: The event of the operator's command. Empty for the next day.

    """

    KIND = "risk.resumed"

    rules: tuple[str, ...]
    equity: Decimal
    by: str = ""
    why: str = ""
    command_id: str = ""

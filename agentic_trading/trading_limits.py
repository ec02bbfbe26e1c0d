"""Limits of a trading session: on the loss of its account, and on the cost of its questions."""

from decimal import Decimal
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field

LossRule = Literal["max_loss_pct", "max_daily_loss_pct", "max_drawdown_pct"]

LOSS_RULES: Final[tuple[LossRule, ...]] = ("max_loss_pct", "max_daily_loss_pct", "max_drawdown_pct")

DailyResume = Literal["operator", "next day"]

LossPercent = Annotated[Decimal, Field(gt=0, le=100)]


class LossLimits(BaseModel, frozen=True, extra="forbid"):
    """Limits on the loss of the account, in percent. None means no limit.

    The equity is compared at each close, without the cost of inference. A limit is reached if the equity has
    fallen by this percentage of its base, or by more.

    Attributes:
        max_loss_pct: The base is the equity at the start of the session.
        max_daily_loss_pct: The base is the equity at the last close of the day before.
        max_drawdown_pct: The base is the highest equity at a close so far.
        daily_loss_resume: Whether entries are allowed again at the first close of the next day after
            `max_daily_loss_pct`, or only after an operator has resumed them.

    """

    max_loss_pct: LossPercent | None = None
    max_daily_loss_pct: LossPercent | None = None
    max_drawdown_pct: LossPercent | None = None
    daily_loss_resume: DailyResume = "operator"

    @property
    def rules(self) -> dict[LossRule, Decimal]:
        """The limits that are set."""
        named = {rule: getattr(self, rule) for rule in LOSS_RULES}
        return {rule: percent for rule, percent in named.items() if percent is not None}

    @property
    def on_record(self) -> dict[str, str]:
        """The limits as JSON values. Empty without a limit."""
        values = self.model_dump(mode="json", exclude_none=True)
        return values if self.rules else {}

    def narrowed_to(self, other: "LossLimits") -> Self:
        """Return these limits with the smaller percentage of each.

        Entries are resumed on the next day only if all that limit the loss of a day allow it.
        """
        both, least = (self.rules, other.rules), dict[str, Any]()
        for rule in LOSS_RULES:
            least[rule] = min((each[rule] for each in both if rule in each), default=None)
        daily = [each for each in (self, other) if each.max_daily_loss_pct is not None]
        is_daily = bool(daily) and all(each.daily_loss_resume == "next day" for each in daily)
        return self.model_copy(update={**least, "daily_loss_resume": "next day" if is_daily else "operator"})


Share = Annotated[Decimal, Field(ge=0, le=1)]

FreeCost = Annotated[Decimal, Field(ge=0, le=1_000_000)]


class Economics(BaseModel, frozen=True, extra="forbid"):
    """Limits on the cost of questions, beside the account that they trade. None means no limit.

    Beyond a limit, a question is not asked. Costs and equity are compared at each close, so that a close with
    several questions may exceed a limit by their cost. Questions about how to fill an order are always asked.

    Attributes:
        max_pct_of_equity_per_day: The largest cost of a day, in percent of the equity at the last close of
            the day before.
        max_share_of_pnl: The largest cost of the session, as a share of its P&L before the cost.
        free: The cost of a session that `max_share_of_pnl` always allows, in the quote currency.

    """

    max_pct_of_equity_per_day: LossPercent | None = None
    max_share_of_pnl: Share | None = None
    free: FreeCost = Decimal(0)

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        return self.max_pct_of_equity_per_day is not None or self.max_share_of_pnl is not None

    @property
    def on_record(self) -> dict[str, str]:
        """The limits as JSON values. Empty without a limit."""
        return self.model_dump(mode="json", exclude_none=True) if self.is_set else {}

    def narrowed_to(self, other: "Economics") -> "Economics":
        """Return the smaller of each limit. `free` is that of the limits with a share."""
        days = [each.max_pct_of_equity_per_day for each in (self, other)]
        shares = [
            (each.max_share_of_pnl, each.free) for each in (self, other) if each.max_share_of_pnl is not None
        ]
        return Economics(
            max_pct_of_equity_per_day=min((each for each in days if each is not None), default=None),
            max_share_of_pnl=min((share for share, _ in shares), default=None),
            free=min((free for _, free in shares), default=Decimal(0)),
        )

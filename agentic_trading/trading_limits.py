"""Limits on the loss of a trading account."""

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

"""What can go wrong when looking back.

TradingError
└── UnknownRecordError    no record of the log has this id
"""

from agentic_trading.errors import TradingError


class UnknownRecordError(TradingError, LookupError):
    """Nothing on record has the id `record_id`."""

    def __init__(self, record_id: str) -> None:
        self.record_id = record_id
        super().__init__(
            f"no record has the id {record_id!r}; allowed are ids of events, envelopes and interactions of this log"
        )

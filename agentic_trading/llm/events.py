"""What a log and the process that writes it say of themselves."""

from agentic_trading.llm.event import EventBody, Kinds


class TailSetAside(EventBody, frozen=True):
    """A torn last line was set aside: so many `bytes`, kept in the file `kept_as` beside the log."""

    KIND = "log.tail_set_aside"

    bytes: int
    kept_as: str
    sha256: str


KINDS = Kinds[TailSetAside](TailSetAside)

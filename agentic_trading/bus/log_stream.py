"""Log data on the bus: the lines of logs as they are on disk, and the end of the archive's log."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from pydantic import AwareDatetime, BaseModel, Field, TypeAdapter

from agentic_trading.bus import message as messages
from agentic_trading.bus.errors import UnreadableMessageError
from agentic_trading.canonical import utc_text
from agentic_trading.llm.log_line import INTERACTION, BrokenRecordError, index_row_of, read_line
from agentic_trading.llm.store import ChainedRecord

LOG_HEADER: Final = "at_log"
NUMBER_HEADER: Final = "at_seq"
HASH_HEADER: Final = "at_hash"


@dataclass(frozen=True, slots=True)
class StreamedLine:
    """One line of the log `log_id`, byte for byte.

    The value of a message does not contain the log id, so `from_wire` leaves it empty.
    """

    line: ChainedRecord
    log_id: str = ""

    @property
    def wire(self) -> bytes:
        """The line, without its newline."""
        return self.line.line

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Parse a line. Raises `ValueError` if it is not a log line, or was changed after it was written."""
        return cls(read_line(raw))

    @classmethod
    def of(cls, message: messages.Message) -> Self:
        """Return the line of a message, with its log id.

        Raises:
            UnreadableMessageError: If the value is not a log line, was changed after it was written, or does
                not match the headers.

        """
        try:
            line = read_line(message.value)
        except BrokenRecordError as e:
            raise UnreadableMessageError("checksum", e.reason, trace_id=_trace_of(message)) from e
        log_id = messages.header(message, LOG_HEADER)
        place = (message.headers.get(NUMBER_HEADER), message.headers.get(HASH_HEADER))
        if not log_id or place != (str(line.seq), line.hash):
            detail = f"{LOG_HEADER}, {NUMBER_HEADER} and {HASH_HEADER} are not those of the line"
            raise UnreadableMessageError("decode", detail, trace_id=_trace_of(message))
        return cls(line, log_id)

    def message(self) -> messages.Message:
        """Return the message that carries the line.

        Its key is the trace, so that the lines of a trace stay in order.
        """
        row = index_row_of(self.line.line)
        headers = messages.event_headers(
            messages.INTERACTION_RECORDED if row.kind == INTERACTION else messages.EVENT_RECORDED,
            row.id,
            source=messages.source(row.tenant, "logs", self.log_id),
            key=row.trace_id,
            trace_id=row.trace_id,
            time=row.time,
            cause=row.envelope_id or row.causation_id,
            subject=row.subject if row.kind == INTERACTION else row.kind,
        )
        headers[LOG_HEADER] = self.log_id
        headers[NUMBER_HEADER] = str(self.line.seq)
        headers[HASH_HEADER] = self.line.hash
        return messages.Message(row.trace_id, self.line.line, headers)


def _trace_of(message: messages.Message) -> str:
    return messages.header(message, "ce_correlationid")


class LogHead(BaseModel, frozen=True, extra="allow"):
    """Where the log `log_id` ended at `time`: the number and the hash of its last line."""

    log_id: str = Field(min_length=1)
    seq: int = Field(ge=0)
    hash: str
    time: AwareDatetime

    @property
    def wire(self) -> bytes:
        """The serialized head."""
        return _HEAD.dump_json(self)

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Parse a head. Raises pydantic's `ValidationError` if the bytes are not a valid head."""
        return cls.model_validate_json(raw)

    @classmethod
    def now(cls, log_id: str, head: tuple[int, str], time: datetime) -> Self:
        """Return the end of a log at `time`."""
        return cls(log_id=log_id, seq=head[0], hash=head[1], time=time)

    def message(self) -> messages.Message:
        """Return the message that carries the head. The heads of a log stay in order."""
        headers = messages.event_headers(
            messages.LOG_ENDED,
            f"{self.log_id}:{self.seq}",
            source=messages.source("logs", self.log_id),
            key=self.log_id,
            trace_id="",
            time=utc_text(self.time),
        )
        return messages.Message(self.log_id, self.wire, headers)


_HEAD = TypeAdapter(LogHead)

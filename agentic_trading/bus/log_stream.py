"""What of logs travels over the bus: their lines, as they stand on disk, and where the archive's own log ends."""

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
    """A line of the log `log_id`, byte for byte as it stands there; the value of a message alone names no log."""

    line: ChainedRecord
    log_id: str = ""

    @property
    def wire(self) -> bytes:
        """The line, without its newline."""
        return self.line.line

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a line; raises `ValueError` for what is none, or is not as it was written."""
        return cls(read_line(raw))

    @classmethod
    def of(cls, message: messages.Message) -> Self:
        """Return the line that a message carries, and its log.

        Raises `UnreadableMessageError` for anything else, for a line that is not as it was written, and for headers that
        speak of another line.
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
        """Return the message that carries the line; its key is the trace, so that a trace keeps its order."""
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
        """The head as it stands on the wire."""
        return _HEAD.dump_json(self)

    @classmethod
    def from_wire(cls, raw: bytes) -> Self:
        """Read a head; raises pydantic's `ValidationError` for anything else."""
        return cls.model_validate_json(raw)

    @classmethod
    def now(cls, log_id: str, head: tuple[int, str], time: datetime) -> Self:
        """Return where a log ends at `time`."""
        return cls(log_id=log_id, seq=head[0], hash=head[1], time=time)

    def message(self) -> messages.Message:
        """Return the message that carries the head; heads of a log keep their order."""
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

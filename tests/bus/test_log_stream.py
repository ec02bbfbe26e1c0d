"""What of logs travels over the bus: a line with its place, and where a log ended."""

import pytest
from pydantic import ValidationError

from agentic_trading.bus.errors import UnreadableMessageError
from agentic_trading.bus.log_stream import LogHead, StreamedLine
from agentic_trading.bus.message import Message
from agentic_trading.llm.log_line import read_line
from agentic_trading.llm.store import ChainedRecord, ChainHead
from agentic_trading.llm.stores.record_codec import write_line
from tests.build import NOW, event


def a_line() -> ChainedRecord:
    line, _ = write_line(event(trace_id="märz").wire, ChainHead(6, "a" * 64))
    return read_line(line)


def test_streamed_line_round_trips() -> None:
    line = a_line()

    message = StreamedLine(line, "log-1").message()

    assert StreamedLine.of(message) == StreamedLine(line, "log-1")
    assert (message.key, message.headers["ce_correlationid"]) == ("märz", "m%C3%A4rz")
    assert StreamedLine.from_wire(message.value).wire == line.line


@pytest.mark.parametrize("name", ["at_log", "at_seq", "at_hash"])
def test_mismatched_line_headers_are_refused(name: str) -> None:
    message = StreamedLine(a_line(), "log-1").message()
    headers = {**message.headers, name: "" if name == "at_log" else "8"}

    with pytest.raises(UnreadableMessageError, match="are not those of the line"):
        StreamedLine.of(Message(message.key, message.value, headers))


def test_log_head_round_trips() -> None:
    head = LogHead.now("log-1", (7, "b" * 64), NOW)

    assert LogHead.from_wire(head.message().value) == head
    assert (head.message().key, head.message().headers["ce_id"]) == ("log-1", "log-1:7")
    with pytest.raises(ValidationError):
        LogHead.from_wire(b'{"log_id":""}')

"""The hash chain of a log: each line holds one record and the hash of all that came before it."""

import re
from dataclasses import dataclass

from agentic_trading.canonical import sha256_hex
from agentic_trading.errors import TradingError

GENESIS = "0" * 64
"""What the first line names as its predecessor."""

_TAG = b"agentic/log/v1\0"
_TAIL = re.compile(rb',"seq":([1-9][0-9]{0,18}),"prev":"([0-9a-f]{64})","hash":"([0-9a-f]{64})"\}')
_LONGEST_TAIL = len(b',"seq":,"prev":"","hash":""}') + 19 + 64 + 64


class BrokenRecordError(TradingError, ValueError):
    """A line is not what was written, or not where it was written; `reason` says what is wrong with it."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class ChainHead:
    """Where a chain ends: the number and the hash of its last line."""

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class ChainedRecord:
    """One line, taken apart: the record's own bytes, and its place in the chain."""

    record: bytes
    seq: int
    prev: str
    hash: str

    @property
    def head(self) -> ChainHead:
        """The chain's end, as long as this is the last line."""
        return ChainHead(self.seq, self.hash)


def write_line(record: bytes, head: ChainHead) -> tuple[bytes, ChainHead]:
    """Return the line that carries `record`, with its newline, and the head that it makes.

    `record` is a JSON object. It goes in as it is, but for newlines: in JSON they can only be white space between
    tokens, and become blanks. The hash is SHA-256 over a domain tag and all bytes before `,"hash":`.
    """
    body = b'%b,"seq":%d,"prev":"%b"' % (record[:-1].replace(b"\n", b" "), head.seq + 1, head.hash.encode())
    digest = sha256_hex(_TAG, body)
    return b'%b,"hash":"%b"}\n' % (body, digest.encode()), ChainHead(head.seq + 1, digest)


def read_line(raw: bytes) -> ChainedRecord:
    """Take a line apart, with or without its newline.

    Raises `BrokenRecordError` if it does not end in `seq`, `prev` and `hash`, or if the hash is not that of its bytes.
    """
    end = len(raw) - raw.endswith(b"\n")
    tail = _TAIL.search(raw, max(0, end - _LONGEST_TAIL), end)
    if tail is None or tail.end() != end:
        raise BrokenRecordError("it does not end in seq, prev and hash")
    seq, prev, digest = (group.decode() for group in tail.groups())
    if sha256_hex(_TAG, raw[: tail.end(2) + 1]) != digest:
        raise BrokenRecordError("its hash is not that of its bytes")
    return ChainedRecord(raw[: tail.start()] + b"}", int(seq), prev, digest)


def check_link(line: ChainedRecord, head: ChainHead) -> ChainHead:
    """Return the head after `line`; raises `BrokenRecordError` if it does not continue the chain that ends in `head`."""
    if line.seq != head.seq + 1:
        raise BrokenRecordError(f"it is number {line.seq} and stands where number {head.seq + 1} belongs")
    if line.prev != head.hash:
        raise BrokenRecordError("it does not continue the line before it")
    return line.head


def holds_whole_line(raw: bytes) -> bool:
    """Say whether a whole line ends inside `raw` and something follows it: no unfinished write leaves that."""
    tail = _TAIL.search(raw)
    return tail is not None and tail.end() < len(raw) - raw.endswith(b"\n")

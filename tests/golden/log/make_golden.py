"""Write the golden logs: calls.jsonl, and events.jsonl with one event of every kind.

Run by hand until release 0.1.0: python -m tests.golden.log.make_golden, and put the printed head of the calls into
expected.py. From 0.1.0 on the files are only read.
"""

from collections.abc import Iterable
from pathlib import Path

from agentic_trading.llm.store import Record
from agentic_trading.llm.stores.jsonl.disk import Disk
from agentic_trading.llm.stores.jsonl.file import LogFile
from agentic_trading.llm.stores.record_codec import identity_of
from tests.event_bodies import BODIES, as_event
from tests.golden.log.expected import RECORDS


def write(path: Path, records: Iterable[Record]) -> str:
    """Write these records into a new log and return the hash of its head."""
    path.unlink(missing_ok=True)
    file = LogFile(path, Disk())
    file.append([(identity_of(record), record.wire) for record in records], sync=True)
    file.close()
    return file.position.head.hash


if __name__ == "__main__":
    folder = Path(__file__).parent
    print(write(folder / "calls.jsonl", RECORDS))
    write(folder / "events.jsonl", map(as_event, BODIES))

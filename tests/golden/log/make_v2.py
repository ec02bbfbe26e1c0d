"""Write v2.jsonl, one event of every kind: run by hand, until its format is released; from then on it is only read.

Run: python -m tests.golden.log.make_v2
"""

from pathlib import Path

from agentic_trading.llm.stores.jsonl.file import Disk, LogFile
from agentic_trading.llm.stores.record_codec import identity_of
from tests.event_bodies import BODIES, as_event

if __name__ == "__main__":
    path = Path(__file__).with_name("v2.jsonl")
    path.unlink(missing_ok=True)
    file = LogFile(path, Disk())
    file.append([(identity_of(record), record.wire) for record in map(as_event, BODIES)], sync=True)
    file.close()

"""Write v1.jsonl: run by hand, until its format is released; from then on the file is only read.

Run: python -m tests.golden.log.make_v1, and put the printed head into expected_v1.py.
"""

from pathlib import Path

from agentic_trading.llm.stores.jsonl.file import Disk, LogFile
from agentic_trading.llm.stores.record_codec import identity_of
from tests.golden.log.expected_v1 import RECORDS

if __name__ == "__main__":
    path = Path(__file__).with_name("v1.jsonl")
    path.unlink(missing_ok=True)
    file = LogFile(path, Disk())
    file.append([(identity_of(record), record.wire) for record in RECORDS], sync=True)
    file.close()
    print(file.position.head.hash)

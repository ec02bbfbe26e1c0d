"""DBOS in the table of `fleet.py`: a workflow of three steps, begun under the name of its call by the process that runs it.

Run: python -m benchmarks.peers.dbos.fleet URL, with the address of its database. Each line of its input has the first number
of its calls, the one behind the last, and how many there are at once; it is answered as `ask_all` does, as JSON.
"""

import json
import logging
import sys

from dbos import DBOS, SetWorkflowID

from benchmarks.peers.dbos.peer import launch
from benchmarks.peers.durable import ANSWER, NUSD_PER_TOKEN, TOKENS, ask_all


@DBOS.step()
def intend() -> dict[str, int]:
    """Note which attempt is about to be sent, and the most that it can cost."""
    return {"attempt": 1, "most_nusd": 64 * NUSD_PER_TOKEN}


@DBOS.step()
def ask_provider() -> dict[str, object]:
    """Ask the provider, which answers at once; what it used is recorded with its answer."""
    return {"text": ANSWER, "tokens": TOKENS}


@DBOS.step()
def settle(tokens: int) -> int:
    """Note what the attempt cost."""
    return tokens * NUSD_PER_TOKEN


@DBOS.workflow()
def advise(_question: str) -> str:
    """Make the call; that it began and what it came to is recorded."""
    intend()
    answer = ask_provider()
    settle(int(str(answer["tokens"])))
    return str(answer["text"])


def _asked(number: int) -> str:
    with SetWorkflowID(f"call-{number}"):
        return advise("Advise.")


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    launch(sys.argv[1])
    for line in sys.stdin:
        first, last, at_once = map(int, line.split())
        print(json.dumps(ask_all(_asked, range(first, last), at_once)), flush=True)
    DBOS.destroy()

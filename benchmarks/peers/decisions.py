"""The side that decides: a file of bars in, the times and sides of a strategy's orders out.

It needs only pandas. A request is one line, the path of a CSV file with the opens of its bars in `open_time`. The answer is one
line of JSON, a list of `[time, side]` in order.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd


def answer_files(decide: Callable[[Any], Sequence[tuple[Any, str]]]) -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        bars = pd.read_csv(line.strip(), index_col="open_time", parse_dates=True)
        print(json.dumps([[at.isoformat(), side] for at, side in decide(bars)]), flush=True)

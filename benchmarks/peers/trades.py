"""The side that trades: prices and orders in a file, the equity at each close and the CPU time out.

It needs nothing but numpy: every contender's environment has it. A request is one line of JSON, `{"data", "equity"}`: the
file with `days`, `close` and `wanted`, and the file to write. `wanted` holds the weights that each bar is to be brought to at
its close, NaN in the bars without orders. The answer is the CPU seconds of this run.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def answer_runs(prepare: Callable[[Any, Any, Any], Callable[[], Any]]) -> None:
    """Answer requests until the input ends; what `prepare` makes of the arrays is not in the time."""
    for line in sys.stdin:
        request = json.loads(line)
        with np.load(request["data"]) as data:
            run = prepare(data["days"], data["close"], data["wanted"])
        start = time.process_time()
        equity = run()
        taken = time.process_time() - start
        np.save(request["equity"], np.asarray(equity, dtype=np.float64))
        print(json.dumps(taken), flush=True)

"""Sets of parameters for tests: all of a family, one that is valid, and the answer that chooses it."""

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

from pydantic import BaseModel

from agentic_trading.desk.planning.params import grid_of

REASON = "The middle of each range: nothing in the evidence speaks for an end."
EXAMPLE = """{
  "reasoning": "選擇 20 天動量週期配合 60 天均線，因為中期趨勢更穩定。收入催化劑在台股較可靠。15 支股票平衡分散與集中。10% 停損適合動量策略波動性。",
  "params": {
    "momentum_period": 20,
    "ma_periods": 60,
    "catalyst_type": "revenue",
    "catalyst_lookback": 3,
    "n_stocks": 15,
    "stop_loss": 0.10,
    "resample": "W",
    "resample_offset": 0
  }
}"""
"""The answer that the first design gives as its example."""

VALID: dict[str, Any] = json.loads(EXAMPLE)["params"]


def all_sets(model: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """Yield every combination of a class's values, whether they agree or not."""
    grid = grid_of(model)
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def answer(params: Any = VALID, reasoning: str | None = REASON) -> str:
    """Return an answer with these parameters."""
    said = {} if reasoning is None else {"reasoning": reasoning}
    return json.dumps({**said, "params": params})

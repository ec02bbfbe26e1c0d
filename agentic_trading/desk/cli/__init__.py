"""The commands of the trading desk: `run`, `replay`, `strategy` and `data`."""

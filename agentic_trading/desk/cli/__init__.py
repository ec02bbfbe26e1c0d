"""The commands of the desk: `run`, `replay`, `strategy` and `data`."""

"""The commands of the desk: `run`, `replay`, `strategy`, `data` and `schemas`."""

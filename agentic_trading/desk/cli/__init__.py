"""The commands of the desk: `run`, `replay`, `strategy`, `data`, `demo` and `schemas`."""

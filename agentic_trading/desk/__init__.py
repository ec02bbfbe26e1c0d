"""The trading desk: market data, analysis, planning and execution, the gateway's first user."""

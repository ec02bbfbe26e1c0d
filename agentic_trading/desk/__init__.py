"""The trading desk: market data, analysis, planning and execution.

It is the gateway's first user.
"""

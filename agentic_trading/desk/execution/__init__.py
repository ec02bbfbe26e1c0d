"""From an approved intent to fills: risk limits, fill strategy, orders, journal."""

"""From an approved intent to orders and fills: limits, the fill strategy, the orders, the journal."""

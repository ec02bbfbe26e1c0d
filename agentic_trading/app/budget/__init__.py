"""Budgets as an operator sees them: where they stand, what was ordered, what came of it, and how to rebuild them."""

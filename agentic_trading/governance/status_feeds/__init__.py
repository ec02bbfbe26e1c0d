"""Where workers tell of their budgets."""

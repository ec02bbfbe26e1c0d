"""Where workers publish the status of their budgets."""

"""Planning: a model chooses the parameters of a strategy; templates make its code, which is checked, run and backtested."""

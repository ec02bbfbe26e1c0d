"""Models as their user sees them: what the tables hold on them, their weights, and a check against the models themselves."""

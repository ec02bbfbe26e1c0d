"""The planner: chooses parameters of a strategy, makes code of them and tests it on past prices."""

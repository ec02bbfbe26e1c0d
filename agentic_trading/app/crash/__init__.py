"""A worker killed in the middle of its calls, and what its log knows of the bill afterwards."""

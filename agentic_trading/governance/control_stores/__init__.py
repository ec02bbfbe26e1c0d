"""Stores for the controls of operators: in memory, in a folder, or on Redis."""

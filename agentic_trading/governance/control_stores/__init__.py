"""Stores for the controls of operators: in one process, in a folder, on a Redis."""

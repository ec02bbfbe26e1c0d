"""Boards for the orders of operators: in one process, in a folder, on a Redis."""

"""The log as a file of JSON lines: written by one process, read by any."""

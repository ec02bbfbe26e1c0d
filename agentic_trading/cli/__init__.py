"""The command line `agentic-trading`, with one file per command group."""

"""The command line `agentic-trading`, one file a command group."""

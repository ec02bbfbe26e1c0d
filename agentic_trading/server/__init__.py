"""The HTTP server for agents of other packages, and its API keys."""

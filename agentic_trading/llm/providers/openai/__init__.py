"""The adapter for OpenAI's chat completions, and for servers with the same API."""

"""Models behind OpenAI's chat completions, and behind the servers that speak the same language."""

"""Claude models, through the SDK of their vendor."""

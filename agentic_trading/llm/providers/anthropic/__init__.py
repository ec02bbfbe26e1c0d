"""Claude models."""

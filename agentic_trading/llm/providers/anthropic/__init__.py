"""The adapters for Claude models."""

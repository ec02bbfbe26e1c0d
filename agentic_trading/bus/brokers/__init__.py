"""The message brokers."""

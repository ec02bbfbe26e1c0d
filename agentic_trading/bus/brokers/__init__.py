"""The brokers that messages can go through."""

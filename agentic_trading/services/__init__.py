"""Servers that a developer's machine runs for the gateway: Kafka and Redis, on loopback, without containers."""

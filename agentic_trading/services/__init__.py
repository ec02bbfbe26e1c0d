"""Local servers for development: Kafka and Redis on loopback, without containers."""

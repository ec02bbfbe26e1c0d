"""The bus on Apache Kafka: consumer groups with commits of our own, and an idempotent producer."""

from agentic_trading.errors import require_extra

require_extra("aiokafka")  # before a module of this package imports it

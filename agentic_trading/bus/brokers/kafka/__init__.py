"""The bus on Apache Kafka: consumer groups with commits of our own, and an idempotent producer."""

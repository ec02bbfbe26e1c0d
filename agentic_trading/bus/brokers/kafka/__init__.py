"""The bus on Apache Kafka: consumer groups with manual commits, and an idempotent producer."""

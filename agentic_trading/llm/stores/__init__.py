"""Stores of interactions and events: in memory, and in a crash-safe JSONL file."""

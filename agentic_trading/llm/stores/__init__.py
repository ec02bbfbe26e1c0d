"""Where interactions are kept: memory and a crash-safe JSONL log."""

"""The log as a file of JSON lines. One process writes it, any process reads it."""

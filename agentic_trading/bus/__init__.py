"""How messages move: topics, the port to a broker, and the spelling of messages."""

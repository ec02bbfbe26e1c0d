"""Streaming indicators in plain Python. They take one bar at a time, and are equal live and in replay."""

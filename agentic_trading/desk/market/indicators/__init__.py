"""Streaming indicators in plain Python: fed one bar at a time, equal live and in replay."""

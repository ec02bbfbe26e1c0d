"""Agents: the protocol, the desk that an agent works with, and the shipped agents."""

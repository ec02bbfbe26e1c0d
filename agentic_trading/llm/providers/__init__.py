"""Adapters of model providers."""

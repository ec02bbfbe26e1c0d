"""Adapters of the `Provider` port."""

"""Closed bars in, numbers as of one moment out: feeds, resampling, indicators, snapshots and triggers."""

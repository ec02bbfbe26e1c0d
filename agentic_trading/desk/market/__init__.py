"""Market data: feeds of closed bars, resampling, indicators, snapshots and triggers."""

"""The claim stores, in memory and on Redis."""

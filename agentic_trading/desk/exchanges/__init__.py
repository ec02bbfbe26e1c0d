"""Exchanges: the adapters of the port `exchange.Exchange`."""

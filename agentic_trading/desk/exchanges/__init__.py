"""Where orders are filled: the adapters of the port `exchange.Exchange`."""

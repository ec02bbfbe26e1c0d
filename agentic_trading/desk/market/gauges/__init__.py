"""What is measured on one timeframe: trend, momentum, volatility, patterns, behaviour."""

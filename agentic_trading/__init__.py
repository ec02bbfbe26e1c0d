"""An LLM gateway for trading, and the trading desk that is its first user.

The packages are laid along the path of a call; data goes through them in one direction.

- `errors`, `clock`, `ids`, `files`, `logger`, `canonical`: the root error, the only time, the only chance, the reader of named files, the log, one spelling of JSON
- `llm`: what a call is, the providers that answer it, the log that keeps it
- `bus`: how messages move
- `governance`: may it run, and what did it cost
- `structured`: from schema to valid object, without I/O
- `worker`: the one loop
- `audit`: what happened
- `replay`: compare a run with its record, off the network
- `client`: the gateway's client, for any application
- `desk`: the trading desk
- `app`: the command line, and the wiring

Import from a package's front door, for example `from agentic_trading.llm import EnvelopeBuilder`.
"""

__version__ = "0.1.0"

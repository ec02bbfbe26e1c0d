"""May a call run, and what did it cost: determinism, prices, estimates, the ledger, retries, the gate."""

"""The steps of the ledger as a server runs them, each in one piece."""

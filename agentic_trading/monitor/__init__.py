"""The dashboard: pages about budgets and records for a browser. It is read-only."""

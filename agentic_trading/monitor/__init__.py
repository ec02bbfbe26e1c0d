"""The dashboard: pages about budgets and records for a browser. It reads, and changes nothing."""

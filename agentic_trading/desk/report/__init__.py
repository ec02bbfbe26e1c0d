"""The report of a session: one page, made from the record alone."""

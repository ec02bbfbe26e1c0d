"""The first release of the analyst's answer: read for ever, asked for no more."""

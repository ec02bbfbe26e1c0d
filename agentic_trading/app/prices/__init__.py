"""The price book before it is used: held against another source, revised, and against what is on record."""

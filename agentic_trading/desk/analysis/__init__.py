"""The analyst: asks for a judgement of computed numbers, and assesses it."""

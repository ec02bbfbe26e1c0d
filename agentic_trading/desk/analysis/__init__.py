"""The analyst: asks for a judgement of computed numbers, and computes what follows from it."""

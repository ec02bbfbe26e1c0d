"""What happened: a log seen as trees of causes, as sums, and as a whole that can be checked."""

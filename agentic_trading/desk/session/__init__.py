"""A trading session: what it is asked to be, its feeds, how it is played, resumed, replayed and reported."""

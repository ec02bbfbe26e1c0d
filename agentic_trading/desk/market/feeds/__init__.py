"""Where bars come from: memory, a CSV file, standard input."""

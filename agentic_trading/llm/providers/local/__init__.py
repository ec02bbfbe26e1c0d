"""A small model on the user's own machine, run by llama.cpp within this process."""

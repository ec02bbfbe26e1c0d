"""The content of each layer of an analysis. It is computed here, so that the model only has to judge it."""

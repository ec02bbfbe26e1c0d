"""The content of each layer of an analysis, computed here so that the model only judges."""

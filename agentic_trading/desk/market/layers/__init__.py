"""What each layer of an analysis is told, computed here so that the model only judges."""

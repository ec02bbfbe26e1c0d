"""What the tables say of models, the weights of local ones, and a check of the tables against the models."""

"""Tools for models: the catalogue of all tables, weights of local models, and live checks."""

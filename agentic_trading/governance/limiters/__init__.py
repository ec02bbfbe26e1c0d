"""Where rates and breakers are kept."""

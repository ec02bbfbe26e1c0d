"""Models as their user sees them: what is known of them, their weights, whether it still holds."""

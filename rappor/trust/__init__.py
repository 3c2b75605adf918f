"""Who must be trusted: one question under three kinds of trust, with the same privacy loss."""

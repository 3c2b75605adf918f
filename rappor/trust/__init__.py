"""Who adds the noise: one question under one epsilon and several kinds of trust."""

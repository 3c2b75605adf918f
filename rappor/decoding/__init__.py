"""From counts and candidates to estimates with honest errors."""

"""Discovery of heavy hitters: frequent strings that no list of candidates contains."""

"""Where summing runs; every engine returns Counts."""

"""Several samples side by side: what changed, over time, between two of them, between segments."""

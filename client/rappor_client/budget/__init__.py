"""What a report costs, what was spent, and what the device remembers of it."""

"""What everything stands on: errors, files, ranges, doors, and how records show themselves."""

"""What changed between collections."""

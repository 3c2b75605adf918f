"""Released counts: sums of blocks that analysts may read, and their export."""

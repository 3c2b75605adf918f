"""Operation of a collector: health, gauges, closing of blocks, backup, retention."""

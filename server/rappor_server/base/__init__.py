"""Base of the collector, which every other package uses: errors, logs, processes, limits."""

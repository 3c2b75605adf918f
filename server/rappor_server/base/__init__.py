"""What every other package of the collector uses: errors, logs, processes, limits of requests."""

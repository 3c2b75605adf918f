"""The way of waiting reports to the collector."""

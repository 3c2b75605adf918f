"""Measurements of speed and accuracy, with comparisons. Run them with `python -m benchmarks`."""

"""Speed and accuracy, measured and compared; run with `python -m benchmarks`."""

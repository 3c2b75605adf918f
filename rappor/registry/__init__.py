"""Metrics, their rules, and the privacy budget of a device."""

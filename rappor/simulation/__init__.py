"""Simulated populations, and the reports and counts of their devices."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

"""Simulated populations and what their devices would have sent."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

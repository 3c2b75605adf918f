"""Strings that nobody thought of."""

from rappor.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

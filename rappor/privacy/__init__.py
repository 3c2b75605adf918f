"""What a report costs a person, and how to tell them. Standard library only."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

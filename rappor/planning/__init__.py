"""Choose the parameters of a collection, and predict what it will find."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

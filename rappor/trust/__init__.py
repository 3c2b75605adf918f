"""Who adds the noise: one question under one epsilon and several kinds of trust."""

from rappor.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

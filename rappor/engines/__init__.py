"""Where the summing of reports runs; every engine returns Counts."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

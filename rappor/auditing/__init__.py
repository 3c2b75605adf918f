"""What an encoder really promises, measured from outside, and an observer's attack."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

"""What an encoder really promises, measured from outside, and what attackers gain."""

from rappor.ground.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

"""Plans of collections.

The choice of parameters, and predictions of the shares that they detect.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

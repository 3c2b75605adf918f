"""Privacy losses of reports, and texts about the losses for people.

The modules need the standard library only, so that a device can show its privacy notice.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

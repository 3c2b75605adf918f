"""Privacy losses of reports, and texts about them for people. Needs the standard library only."""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

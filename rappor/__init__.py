"""RAPPOR: learn which strings are common among many devices without learning anyone's.

This is the one door to the method: verbs, the records that they return, and errors. Five packages
behind it have doors of their own: `rappor.auditing`, `rappor.engines`, `rappor.planning`,
`rappor.privacy` and `rappor.simulation`.
Nothing is imported before it is touched.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

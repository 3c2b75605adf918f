"""RAPPOR: learn which strings are common among many devices without learning anyone's.

This is the one door to the method; the packages behind it are the second: `rappor.privacy`,
`rappor.planning`, `rappor.decoding`, `rappor.engines`, `rappor.simulation`, `rappor.auditing`,
`rappor.trust`.
Nothing is imported before it is touched.
"""

from rappor.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

"""RAPPOR: learn which strings are common among many devices without learning anyone's.

This module exports the public functions of the method, the records that they return, and the
errors. Five subpackages export public names of their own: `rappor.auditing`, `rappor.engines`,
`rappor.planning`, `rappor.privacy` and `rappor.simulation`. A module is imported only when a
program first reads one of its names, so `import rappor` is fast.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

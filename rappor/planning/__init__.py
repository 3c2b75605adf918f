"""Planning of a collection: parameters for a privacy budget, and the shares that they detect.

All functions compute their results from formulas, without simulation.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

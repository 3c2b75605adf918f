"""Engines that add up stored reports: files on one machine, Spark, and SQL of warehouses.

Every engine reads the same layout of rows (`rappor.engines.layout`) and returns Counts.
"""

from rappor.base.lazy_exports import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

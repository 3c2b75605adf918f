"""Type aliases of the numpy arrays that the analyst's packages pass to each other.

An alias fixes the element type. Shape and unit stand in the docstring of each function.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Booleans: TypeAlias = NDArray[np.bool_]

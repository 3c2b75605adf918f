"""Compiled kernels in an installation in which no folder can be written."""

from __future__ import annotations

import os

import numpy as np
import pytest
from programs import run_python

from rappor.candidates.compiled_hashing import hash_words


@pytest.mark.slow
def test_kernels_work_without_a_folder_for_the_compiled() -> None:
    """A process without a writable folder compiles for itself, and gets the same results."""
    program = (
        "import numpy as np\n"
        "from rappor.candidates.compiled_hashing import hash_words\n"
        "print(hash_words(*np.arange(5, dtype=np.uint32)))\n"
    )
    output = run_python("-c", program, NUMBA_CACHE_DIR=f"{os.devnull}/nowhere").stdout
    assert output == f"{hash_words(*np.arange(5, dtype=np.uint32))}\n"

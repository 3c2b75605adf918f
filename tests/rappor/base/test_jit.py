"""Compiled loops in an installation without a writable folder for compiled code."""

from __future__ import annotations

import os

import numpy as np
import pytest
from programs import run_python

from rappor.candidates.compiled_hashing import hash_words


@pytest.mark.slow
def test_loops_work_without_a_writable_cache() -> None:
    """A process that cannot write compiled code compiles the loops itself, with equal results."""
    program = (
        "import numpy as np\n"
        "from rappor.candidates.compiled_hashing import hash_words\n"
        "print(hash_words(*np.arange(5, dtype=np.uint32)))\n"
    )
    output = run_python("-c", program, NUMBA_CACHE_DIR=f"{os.devnull}/nowhere").stdout
    assert output == f"{hash_words(*np.arange(5, dtype=np.uint32))}\n"

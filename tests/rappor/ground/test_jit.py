"""Compiled kernels where nothing can be written."""

from __future__ import annotations

import os
import subprocess
import sys


def test_kernels_work_without_a_folder_for_the_compiled() -> None:
    """A service whose folders are all read-only compiles for itself and gets the same bytes."""
    program = (
        "import numpy as np\n"
        "from rappor.candidates.murmur3 import hash_words\n"
        "print(hash_words(*np.arange(5, dtype=np.uint32)))\n"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **extra},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for extra in ({}, {"NUMBA_CACHE_DIR": f"{os.devnull}/nowhere"})
    ]
    assert answers[0] == answers[1]
    assert answers[0].strip().isdigit()

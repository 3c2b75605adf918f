"""The matrix library's threads: one while anything decodes, all of them after."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from rappor.decoding.blas_threads import one_thread


def threads() -> set[int]:
    """Return the numbers of threads of the matrix libraries."""
    assert np.eye(2).sum() == 2
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_overlapping_decodes_give_the_threads_back() -> None:
    """The first to begin may be the first to end; the limit stays for the other."""
    with threadpool_limits(limits=2, user_api="blas"):
        first, second = one_thread(), one_thread()
        first.__enter__()
        second.__enter__()
        assert threads() == {1}
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}
        with one_thread():
            assert threads() == {1}
        assert threads() == {2}

"""Faulty generalized randomized response of sets, for tests of audits.

Each function draws the bucket that a report names. It has the arguments and the result of
`reference.draw_bucket`:

- own: own buckets of the items, ascending
- k: number of buckets
- n: number of buckets to which a set is padded or cut
- t: threshold of `keep`. If coin u[n] is below t, the report names one of the n buckets, else one
  of all k buckets
- u: n + 2 coins. The first n pad or cut, and the last coin draws the index
"""

from __future__ import annotations

from collections.abc import Callable

import reference

Draw = Callable[[list[int], int, int, int, list[int]], int]
"""Type of the functions of this module. They take own, k, n, t and u, and return a bucket."""


def draw_without_padding(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Draw from the own buckets without padding, so that a small set shows its items more often."""
    chosen = reference.choose_own_buckets(own, k, n, u) if len(own) > n or not own else own
    return chosen[u[n + 1] * len(chosen) >> 32] if u[n] < t else u[n + 1] * k >> 32


def draw_with_repeated_padding(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Pad a small set by repeating its own buckets instead of drawing other buckets."""
    chosen = reference.choose_own_buckets(own, k, n, u)
    if own and len(own) < n:
        chosen = sorted((own * n)[:n])
    return chosen[u[n + 1] * n >> 32] if u[n] < t else u[n + 1] * k >> 32


def draw_with_a_remainder(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Take the remainder of a coin, which prefers small indices."""
    chosen = reference.choose_own_buckets(own, k, n, u)
    return chosen[u[n + 1] % n] if u[n] < t else u[n + 1] % k


def draw_with_a_bias(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Square the coin of the index (as a fraction), so that low indices are more frequent."""
    squared = u[n + 1] ** 2 >> 32
    return reference.draw_bucket(own, k, n, t, [*u[: n + 1], squared if u[n] < t else u[n + 1]])


def draw_the_first(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Report the smallest own bucket instead of drawing one of the own buckets."""
    chosen = reference.choose_own_buckets(own, k, n, u)
    return chosen[0] if u[n] < t else u[n + 1] * k >> 32


def cut_by_order(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Cut a large set to its first n buckets instead of drawing n of them."""
    return reference.draw_bucket(own[:n], k, n, t, u)


def mark_the_empty_set(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Report bucket 0 for the empty set, so a report reveals that a device has no item."""
    return reference.draw_bucket(own, k, n, t, u) if own else 0


def use_other_k(own: list[int], k: int, n: int, t: int, u: list[int]) -> int:
    """Draw from k - 1 buckets, so that no report ever names the last bucket."""
    return reference.draw_bucket([i for i in own if i < k - 1], k - 1, min(n, k - 2), t, u)


SET_FAULTS: dict[str, Draw] = {
    "no padding": draw_without_padding,
    "padding repeats items": draw_with_repeated_padding,
    "remainder for an index": draw_with_a_remainder,
    "biased index": draw_with_a_bias,
    "choice by order": draw_the_first,
    "cut by order": cut_by_order,
    "empty set has its own bucket": mark_the_empty_set,
    "k of another n": use_other_k,
}
"""Faulty drawings by name. Each changes the bucket for some coins."""

"""Buckets and noise of sets for a privacy loss, in closed form.

A metric of sets uses generalized randomized response: the report of a device names one of k
buckets, mostly a bucket of its set (`rappor.protocol.responses.generalized_response`). The loss of
one report is the loss of any number of reports of the set, because all of them are equal.
"""

from __future__ import annotations

from rappor.base.ranges import check_integer
from rappor.planning.noise import Budget
from rappor.protocol.encodings.sets import MAX_ITEMS
from rappor.protocol.params import Params
from rappor.protocol.profiles import compute_keep_threshold, compute_set_buckets
from rappor.protocol.thresholds import ONE


def design_sets(items: int, epsilon: float, *, m: int) -> Params:
    """Return the parameters of sets with the least variance of a rare item.

    Parameters
    ----------
    items : largest number of items of a set.
    epsilon : limit of the privacy loss of a report, in nats.
    m : number of cohorts.

    Raises
    ------
    ParamsError
        `items` is not in [1, 64], or the loss is not in [0.001, 40].
    """
    check_integer("items", items, 1, MAX_ITEMS)
    # Budget checks the range of the loss.
    k = compute_set_buckets(Budget(epsilon, epsilon).epsilon_1, items)
    threshold = compute_keep_threshold(epsilon, k=k, n=items)
    return Params(encoding="set", k=k, m=m, items=items, keep=threshold / ONE)

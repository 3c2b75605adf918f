"""Number of items of an unchanged set that an observer of linked epochs names.

A device with a metric of sets (`encoding = "set"`) sends one report in each epoch. Nothing in the
reports links the epochs, because cohort, bucket and day are drawn anew. The assumed observer
links the reports by other means, for example by a network address, and has the list of all items
with their popularity. The output is the expected number of items that the observer
assigns to the device with more than 90 % certainty, and rightly.

The model of the popularity: there are 4,000 items, and a device has the item of rank r with
probability

    pi_r = 1 - exp(-c / r)

independently of its other items. This is Zipf's law with a limit of 1. The constant c is such that
a device has n items on average, the number n of own buckets of the metric.

The model of the reports: E reports, one of each epoch, of k buckets. x of the reports name the
bucket that the item has in the cohort of the report.

    probability that a report names the bucket of an item of the device               q*
    probability that a report names the bucket of another item, averaged over hashes  1 / k

The observer has the prior odds pi_r / (1 - pi_r), and multiplies them by q* k for each report of
the bucket, and by (1 - q*) / (1 - 1/k) for each other report. An item is named if the probability
after the reports is above 90 %. Items with a larger popularity are not counted, because the
observer names them without any report.

Example: with the profile "once" and 8 items, q* = .061 and k = 464. One report of a bucket
multiplies the odds by 28, so the first epoch names only items that a quarter of all devices has.

The observer judges each item alone. An observer who also uses that two items of one bucket compete
for a report names slightly different numbers.
"""

from __future__ import annotations

import functools
import math
from typing import Final

from rappor.privacy.recognition import binomial_probability
from rappor.protocol.params import Params

KNOWN_ITEMS: Final = 4_000
"""Number of items that the observer knows. A convention, about the size of a large directory of
plugins. With more items, most of them are rarer and named later."""

CERTAINTY: Final = 0.9
"""Belief, as a probability, above which an item counts as named. A convention: at most one in ten
of the named items is wrong. A larger number counts fewer items."""

EPOCH_OF_SETS: Final = (
    'Choose the epoch "quarter" or "year" for sets: each month more costs as much as the first.'
)
"""Advice about the length of an epoch. A set mostly stays the same from one month to the next, so
twelve reports a year cost twelve times the loss of one."""

_BISECTIONS: Final = 60
"""Number of halvings of the interval that contains c. Each adds one binary digit, and a float has
53."""


def count_named_items(params: Params, epochs: int) -> float:
    """Compute the expected number of items of an unchanged set that an observer names.

    Parameters
    ----------
    params : the parameters of a metric of sets.
    epochs : number of epochs that the observer links, with one report in each.

    Returns
    -------
    The number of items, at most the average number n of items of a device.

    Examples
    --------
    >>> params = Params.profile("once", encoding="set", items=8)
    >>> [round(count_named_items(params, epochs), 2) for epochs in (1, 4, 12, 40)]
    [0.08, 0.35, 1.09, 3.56]
    """
    k, q_star = params.k, params.q_star
    gain_of_hit = math.log(q_star * k)
    gain_of_miss = math.log((1 - q_star) / (1 - 1 / k))
    needed = math.log(CERTAINTY / (1 - CERTAINTY))
    # at_least[x] is the probability of x or more reports of the bucket of one of the device's
    # items. The last entry, for more reports than epochs, is 0.
    at_least = [0.0]
    for x in range(epochs, -1, -1):
        at_least.insert(0, at_least[0] + binomial_probability(epochs, x, q_star))
    total = 0.0
    for popularity in list_popularities(params.items):
        if popularity > CERTAINTY:
            continue
        prior = math.log(popularity / (1 - popularity))
        # Smallest x at which prior + x gain_of_hit + (epochs - x) gain_of_miss exceeds `needed`.
        missing = needed - prior - epochs * gain_of_miss
        hits = math.floor(missing / (gain_of_hit - gain_of_miss)) + 1
        total += popularity * at_least[min(max(hits, 0), epochs + 1)]
    return total


@functools.lru_cache(maxsize=64)
def list_popularities(items: int) -> tuple[float, ...]:
    """List the share of the devices that have each of 4,000 items, from the most popular item on.

    The shares add up to `items`, the average number of items of a device.
    """
    # With c = 2 * KNOWN_ITEMS, every item has a share of at least .86, and the shares add up to
    # more than the largest number of items.
    low, high = 0.0, 2.0 * KNOWN_ITEMS
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if math.fsum(-math.expm1(-middle / rank) for rank in range(1, KNOWN_ITEMS + 1)) < items:
            low = middle
        else:
            high = middle
    return tuple(-math.expm1(-high / rank) for rank in range(1, KNOWN_ITEMS + 1))

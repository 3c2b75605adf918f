"""Privacy by shuffling: what one report loses if it arrives among many, in no order.

A shuffler passes on the reports of n devices with nothing that says whose each is. Then one
device's report hides among the others', and its loss against who sees the batch is smaller
than the loss of the report alone, with probability 1 - delta. A report that names its cohort
is shuffled among those of its cohort only: n is the smallest actual cohort, not all devices.
For several reports of a device under one permanent response, whole histories are shuffled,
and the loss of one history takes the place of that of one report.

Two published bounds are closed forms. `shuffle_accounting` computes the loss behind the second one
numerically, which gives less at the same delta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rappor.privacy.shuffle_accounting import numerical_epsilon, numerical_local
from rappor.ranges import check_integer, check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """The loss of one device's report (or history) in a shuffled batch of n, in nats.

    `local` is its loss outside the batch, and `numerical` the one that is computed numerically.
    `bound_2021` and `bound_2023` are closed forms, None where their condition does not hold: the
    local loss must be at most `most_2021`, `most_2023`.
    """

    local: float
    n: int
    delta: float
    numerical: float
    most_2021: float
    most_2023: float
    bound_2021: float | None
    bound_2023: float | None

    @property
    def epsilon(self) -> float:
        """The smallest loss that is proven; shuffling never adds to the local one."""
        bounds = (self.numerical, self.bound_2021, self.bound_2023)
        return min([self.local, *(bound for bound in bounds if bound is not None)])


def shuffle(local: float, n: int, *, delta: float) -> Shuffled:
    """Bound the loss of one of n shuffled reports that each lose at most `local` nats.

    Raises
    ------
    ParamsError: local is no number in [0, infinity], n no positive integer, delta not in (0, 1).
    """
    check_number("local", local, "[0, infinity]")
    check_integer("n", n, 1)
    check_number("delta", delta, "(0, 1)")
    first, second = most_local_2021(n, delta), most_local_2023(n, delta)
    return Shuffled(
        local=local,
        n=n,
        delta=delta,
        numerical=numerical_epsilon(local, n, delta=delta),
        most_2021=first,
        most_2023=second,
        bound_2021=_bound_2021(local, n, delta) if local <= first else None,
        bound_2023=_bound_2023(local, n, delta) if local <= second else None,
    )


def most_local_2021(n: int, delta: float) -> float:
    """Return the largest local loss that the bound of 2021 admits; below 0 if none."""
    return math.log(n / (16 * _log_over(2, delta)))


def most_local_2023(n: int, delta: float) -> float:
    """Return the largest local loss that the bound of 2023 admits; below 0 if none."""
    room = n / (8 * _log_over(2, delta)) - 1
    return math.log(room) if room > 0 else -math.inf


def local_for(epsilon: float, n: int, *, delta: float) -> float:
    """Return the largest local loss that a shuffled batch of n turns into at most `epsilon`.

    It is `epsilon` itself where the batch is too small to hide anything.
    """
    check_number("epsilon", epsilon, "[0, infinity)")
    check_integer("n", n, 1)
    check_number("delta", delta, "(0, 1)")
    return numerical_local(epsilon, n, delta=delta)


def likely_smallest_cohort(n: int, m: int, *, delta: float) -> int:
    """Return a size that every cohort reaches with probability at least 1 - `delta`.

    n devices fall into m cohorts uniformly. Chernoff: a cohort of mean s = n / m has fewer
    than s - t with probability at most exp(-t^2 / 2s), and there are m of them.
    """
    check_integer("n", n, 1)
    check_number("delta", delta, "(0, 1)")
    mean = n / m
    return n if m == 1 else max(0, math.floor(mean - math.sqrt(2 * mean * _log_over(m, delta))))


def _bound_2021(local: float, n: int, delta: float) -> float:
    """Feldman, McMillan and Talwar, FOCS 2021, Theorem 3.1."""
    grown = math.exp(local)
    noise = 8 * math.sqrt(grown * _log_over(4, delta) / n) + 8 * grown / n
    return math.log1p(math.tanh(local / 2) * noise)


def _bound_2023(local: float, n: int, delta: float) -> float:
    """Feldman, McMillan and Talwar 2023 (SODA)."""
    noise = 4 * math.sqrt(2 * _log_over(4, delta) / ((math.exp(local) + 1) * n)) + 4 / n
    return math.log1p(math.expm1(local) * noise)


def _log_over(x: float, delta: float) -> float:
    """Return ln(x / delta), also for the least delta that a float can be."""
    return math.log(x) - math.log(delta)

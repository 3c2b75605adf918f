"""The classic survey by coins: each person answers a yes-or-no question by two coins.

`CoinSurvey` has the mechanism, its privacy loss, the estimate of the share of people with the
property, and its confidence interval. `rappor.trust.models` compares the survey with other models.

The mechanism [W65]: with probability alpha a person says the truth. Else the person says "yes" with
probability beta. So a person without the property says "yes" with probability p, and a person with
the property with probability q:

    p = (1 - alpha) beta,    q = alpha + (1 - alpha) beta,    q - p = alpha.

Example: alpha = beta = 1/2 give p = .25 and q = .75. If 600 of 1,000 people say "yes", the
estimated share is (.6 - .25) / .5 = .7. An answer loses ln(q / p) = ln 3 = 1.0986 nats.

[W65] Warner. Randomized response: a survey technique for eliminating evasive answer bias. JASA 60,
1965. [DR14] Dwork, Roth. The algorithmic foundations of differential privacy. 2014.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Self

from rappor.base.errors import MissingExtraError, ParamsError
from rappor.base.ranges import check_integer, check_number
from rappor.protocol.responses.response import Coins
from rappor.protocol.thresholds import ONE, compute_threshold

MOST_LOCAL: Final = 20.0
"""Largest loss of the answer of one device, in nats.

A false answer then has probability 9 / 2^32. At larger losses the rounding to 32-bit coins would
change the loss too much.
"""

MOST_EPSILON: Final = MOST_LOCAL / 2
"""Largest epsilon, in nats, at which `rappor.trust.models` compares the models.

One of the models is RAPPOR with epsilon_1 = epsilon. Its permanent response loses twice as much,
and this loss must be at most `MOST_LOCAL`.
"""

_LEAST_PROBABILITY: Final = 1e-12
"""Smallest distance of a probability from 0 and 1, and smallest ratio of two variances.

With p = 0 and a share of 0, the number of "yes" is always 0. Its variance is 0, and the ratio would
divide by zero.
"""

_HALVINGS: Final = 42
"""Number of steps of a bisection.

Each halves the error. 2^-42 of the range is below the printed digits.
"""

_LEAST_STEPS: Final = 4
"""Lower limit of epsilon, in steps of 2^-32.

At a smaller epsilon, alpha would be less than two steps of a 32-bit coin, because it is about
epsilon / 2 with beta = 1/2. Rounding alpha down to a whole number of steps could then halve it.
"""


@dataclass(frozen=True, slots=True)
class CoinSurvey:
    """A survey by coins: the truth with probability alpha, else "yes" with probability beta [W65].

    Parameters
    ----------
    alpha : probability of the truth, in [2^-32, 1].
    beta : probability of "yes" instead of the truth, in [0, 1].

    Both attributes contain the probabilities that 32-bit coins have.

    Raises
    ------
    ParamsError
        A probability is outside its range.

    Examples
    --------
    >>> survey = CoinSurvey(alpha=0.5, beta=0.5)
    >>> round(survey.epsilon, 4), survey.estimate(n_yes=600, n=1000)
    (1.0986, 0.7)
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        """Check both probabilities, and round them to 32-bit coins."""
        check_number("alpha", self.alpha, "(0, 1]")
        check_number("beta", self.beta, "[0, 1]")
        if compute_threshold(self.alpha) == 0:
            raise ParamsError(f"alpha must be at least 2^-32, a coin's step, got {self.alpha!r}")
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, compute_threshold(getattr(self, name)) / ONE)

    @classmethod
    def at(cls, epsilon: float, beta: float = 0.5) -> Self:
        """Return the survey with the smallest noise whose answers lose at most epsilon.

        Let r = min(beta, 1 - beta), the probability of the rarer random answer. The loss is
        ln(1 + alpha / ((1 - alpha) r)), see the property `epsilon`. Setting the loss to epsilon
        gives alpha / (1 - alpha) = (e^epsilon - 1) r. With this number as gain, the largest alpha
        is gain / (1 + gain).

        With beta = 1/2 the survey is symmetric randomized response: an answer is the truth with
        probability 1/2 + alpha / 2. Inserting r = 1/2 gives
        alpha = (e^epsilon - 1) / (e^epsilon + 1) [DR14].

        Parameters
        ----------
        epsilon : loss of an answer in nats, in (2^-30, 20].
        beta : probability of "yes" instead of the truth, in (0, 1).

        Raises
        ------
        ParamsError
            A number is outside its range, or too small for 32-bit coins.
        """
        check_epsilon(epsilon, most=MOST_LOCAL)
        check_number("beta", beta, "(0, 1)")
        # r: probability of the rarer random answer, as 32-bit coins draw it.
        rarer = min(compute_threshold(beta), ONE - compute_threshold(beta)) / ONE
        gain = math.expm1(epsilon) * rarer
        # Rounded down, so that the loss is at most epsilon.
        t_alpha = math.floor(gain / (1 + gain) * ONE)
        if t_alpha == 0:
            raise ParamsError(
                f"epsilon must be larger for 32-bit coins at beta = {beta:g}, got {epsilon!r}"
            )
        return cls(t_alpha / ONE, beta)

    @property
    def p(self) -> float:
        """Probability of "yes" from a person without the property."""
        return (1 - self.alpha) * self.beta

    @property
    def q(self) -> float:
        """Probability of "yes" from a person with the property."""
        return self.alpha + (1 - self.alpha) * self.beta

    @property
    def epsilon(self) -> float:
        """Loss of one answer in nats. It is infinite if an answer can be certain."""
        # The rarer random answer has the largest ratio of probabilities: it is (alpha + noise) for
        # a person whose truth it is, and noise for another person.
        noise = (1 - self.alpha) * min(self.beta, 1 - self.beta)
        return math.log1p(self.alpha / noise) if noise else math.inf

    def randomize(self, coins: Coins, *, truth: bool) -> bool:
        """Randomize the answer of one person by two coins.

        Parameters
        ----------
        coins : draws a number of 32-bit integers.
        truth : whether the person has the property.

        Returns
        -------
        The answer: True for "yes".
        """
        # Both coins are always drawn, so that the number of coins does not depend on the first one.
        first, second = coins(2)
        if first < compute_threshold(self.alpha):
            return truth
        return second < compute_threshold(self.beta)

    def estimate(self, n_yes: int, n: int) -> float:
        """Estimate the share of people with the property. The estimate is not clipped to [0, 1].

        Parameters
        ----------
        n_yes : number of people who answered "yes".
        n : number of people, at least 1.
        """
        check_integer("n", n, 1)
        check_integer("n_yes", n_yes, 0, n)
        # E[n_yes / n] = p + alpha share, since q - p = alpha.
        return (n_yes / n - self.p) / self.alpha

    def variance(self, share: float, n: int) -> float:
        """Compute the variance of the estimate if a share of the n people has the property.

        The n people are fixed, and only the coins are random: each answer has variance q (1 - q) or
        p (1 - p).
        """
        noise = share * self.q * (1 - self.q) + (1 - share) * self.p * (1 - self.p)
        return noise / (n * self.alpha**2)

    def interval(self, n_yes: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
        """Compute a two-sided confidence interval of the share among the n people, unclipped.

        The number of "yes" is not binomial: n people of two kinds vary less together than n equal
        people with the mean probability. Dividing the number by a factor gives a number with the
        mean and the variance of a binomial count (`_compute_tails`). The method of Clopper and
        Pearson is applied to this count.

        Parameters
        ----------
        n_yes : number of people who answered "yes".
        n : number of people.
        confidence : level of the interval, in (0, 1).

        Raises
        ------
        MissingExtraError
            scipy is not installed.
        """
        check_number("confidence", confidence, "(0, 1)")
        share = self.estimate(n_yes, n)
        # With alpha = 1 everybody tells the truth, so the share is certain.
        if self.alpha == 1:
            return share, share
        tail = (1 - confidence) / 2

        def is_above_low(x: float) -> bool:
            """Return whether n_yes or more is probable enough if the share is x."""
            return self._compute_tails(x, n_yes, n)[0] >= tail

        def is_above_high(x: float) -> bool:
            """Return whether n_yes or fewer is too improbable if the share is x."""
            return self._compute_tails(x, n_yes, n)[1] <= tail

        # The shares at which everybody would answer "no", and everybody "yes".
        ends = -self.p / self.alpha, (1 - self.p) / self.alpha
        return _bisect(is_above_low, *ends), _bisect(is_above_high, *ends)

    def _compute_tails(self, share: float, n_yes: int, n: int) -> tuple[float, float]:
        """Compute the probabilities of n_yes or more, and of n_yes or fewer, for a true share.

        Let the number of "yes" have the mean n P and the variance factor n P (1 - P), with P the
        probability of a "yes" of a random person. The factor is at most 1. The number divided by
        the factor has the mean (n / factor) P and the variance (n / factor) P (1 - P). These are
        the mean and the variance of a binomial count of n / factor trials, whose tails are
        incomplete beta functions. They are defined for a fraction of a trial, too.

        The number of "yes" is a whole number, but the divided number has steps of 1 / factor. So
        the tails have a continuity correction: n_yes or more is n_yes - 1/2 or more on a continuous
        scale, which is (n_yes - 1/2) / factor + 1/2 or more of the binomial count. Without the
        correction, intervals of surveys with little noise would be too short. With alpha = .9 and
        beta = .1, 95 % intervals for 5 people would contain the share in as few as 88 % of cases.

        Example: n = 1,000, alpha = beta = 1/2, and a share of .5. P is .5, so a binomial count has
        the variance 250. The number of "yes" has the variance 1,000 (.75) (.25) = 187.5, so the
        factor is .75, and the count has 1,333.3 trials.
        """
        special = _import_special()
        mean = min(max(self.p + self.alpha * share, _LEAST_PROBABILITY), 1 - _LEAST_PROBABILITY)
        # The interval is unclipped, but a variance exists for shares in [0, 1] only.
        inside = min(max(share, 0.0), 1.0)
        p_yes = self.p + self.alpha * inside
        binomial = max(p_yes * (1 - p_yes), _LEAST_PROBABILITY)
        factor = max(self.variance(inside, n) * n * self.alpha**2 / binomial, _LEAST_PROBABILITY)
        trials = n / factor
        # P(X >= x) for X ~ Binomial(trials, mean) is I_mean(x, trials - x + 1). `x` is the number
        # of n_yes, and `next_x` the number of n_yes + 1: P(X < next_x) is the lower tail.
        x, next_x = (n_yes - 0.5) / factor + 0.5, (n_yes + 0.5) / factor + 0.5
        more = float(special.betainc(x, trials - x + 1, mean)) if n_yes else 1.0
        fewer = float(special.betaincc(next_x, trials - next_x + 1, mean)) if n_yes < n else 1.0
        return more, fewer


def _bisect(is_above: Callable[[float], bool], low: float, high: float) -> float:
    """Return the point from which on `is_above` holds, to 2^-42 of the range."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if is_above(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _import_special() -> ModuleType:
    """Import scipy.special. Raise MissingExtraError if scipy is not installed."""
    try:
        return importlib.import_module("scipy.special")
    except ImportError:
        raise MissingExtraError("analysis") from None


def check_epsilon(epsilon: float, *, most: float = MOST_EPSILON) -> None:
    """Raise ParamsError unless 32-bit coins can bound a loss by epsilon, in nats."""
    # The comparison is false for NaN, which is therefore refused.
    if not _LEAST_STEPS / ONE < epsilon <= most:
        raise ParamsError(f"epsilon must be a number in (2^-30, {most:g}], got {epsilon!r}")

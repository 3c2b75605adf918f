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
"""Largest loss of an answer in nats.

A false answer then has probability 9 / 2^32. At larger losses the rounding to 32-bit coins would
change the loss too much.
"""

MOST_EPSILON: Final = MOST_LOCAL / 2
"""Largest loss of a question in nats. RAPPOR's permanent response loses twice as much."""

_CERTAIN: Final = 1e-12
"""Smallest distance of a probability from 0 and 1, and smallest relative variance.

A count without variance, as with p = 0 and a share of 0, would divide by zero.
"""

_HALVINGS: Final = 42
"""Number of steps of a bisection.

Each halves the error. 2^-42 of the range is below the printed digits.
"""

_LEAST_STEPS: Final = 4
"""Smallest epsilon, in steps of 2^-32.

The alpha of a smaller epsilon would be about one step of a 32-bit coin, and rounding would change
alpha much.
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

        With beta = 1/2 the survey is symmetric randomized response: an answer is the truth with
        probability 1/2 + alpha / 2, with alpha = (e^epsilon - 1) / (e^epsilon + 1) [DR14].

        For any beta, let r = min(beta, 1 - beta). The loss is ln(1 + alpha / ((1 - alpha) r)), so
        the largest alpha is gain / (1 + gain) with gain = (e^epsilon - 1) r.

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
        people with the mean probability. So the method of Clopper and Pearson is applied to a
        binomial count of fewer trials, with the same mean and variance.

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
        # The shares at which everybody would answer "no", and everybody "yes".
        ends = -self.p / self.alpha, (1 - self.p) / self.alpha
        low = _bisect(lambda x: self._compute_tails(x, n_yes, n)[0] >= tail, *ends)
        high = _bisect(lambda x: self._compute_tails(x, n_yes, n)[1] <= tail, *ends)
        return low, high

    def _compute_tails(self, share: float, n_yes: int, n: int) -> tuple[float, float]:
        """Compute the probabilities of n_yes or more, and of n_yes or fewer, for a true share.

        A binomial count of n / factor trials has the mean and the variance of the number of "yes",
        both divided by factor. Its tails are incomplete beta functions.
        """
        special = _import_special()
        mean = min(max(self.p + self.alpha * share, _CERTAIN), 1 - _CERTAIN)
        # The interval is unclipped, but a variance exists for shares in [0, 1] only.
        inside = min(max(share, 0.0), 1.0)
        p_yes = self.p + self.alpha * inside
        binomial = max(p_yes * (1 - p_yes), _CERTAIN)
        factor = max(self.variance(inside, n) * n * self.alpha**2 / binomial, _CERTAIN)
        yes, no = n_yes / factor, (n - n_yes) / factor
        # P(X >= yes) for X ~ Binomial(yes + no, mean) is I_mean(yes, no + 1).
        more = float(special.betainc(yes, no + 1, mean)) if n_yes else 1.0
        fewer = float(special.betaincc(yes + 1, no, mean)) if n_yes < n else 1.0
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

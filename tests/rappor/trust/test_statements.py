"""Post-processing and mixtures of private mechanisms do not increase the loss.

All probabilities are exact: they are enumerated over all coins of the package's code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import pytest
from enumeration import enumerate_reports

from rappor import Params
from rappor.protocol.loss import epsilon_1
from rappor.trust.coin_survey import MOST_EPSILON, CoinSurvey

Outcomes = Mapping[Any, Fraction]

TWO_BITS = Params(k=2, encoding="onehot", f=0.5, p=0.25, q=0.625, categories=("a", "b"))
VALUES = [bytes([bits]) for bits in range(3)]
REPORTS = [enumerate_reports(value, TWO_BITS, 1) for value in VALUES]


def worst_ratio(first: Outcomes, second: Outcomes) -> Fraction:
    """Return the largest ratio of the probabilities of an outcome, which is e^loss."""
    return max(
        max(first[key] / second[key], second[key] / first[key])
        for key in first.keys() | second.keys()
    )


def compute_delta(epsilon_e: Fraction, first: Outcomes, second: Outcomes) -> Fraction:
    """Return the smallest delta for a loss whose exponential is `epsilon_e`."""
    keys = first.keys() | second.keys()
    return sum((max(Fraction(0), first[k] - epsilon_e * second[k]) for k in keys), Fraction(0))


def mix(first: Outcomes, second: Outcomes) -> dict[Any, Fraction]:
    """Return the outcomes of one of two mechanisms, chosen by a secret fair coin."""
    keys = first.keys() | second.keys()
    zero = Fraction(0)
    return {key: (first.get(key, zero) + second.get(key, zero)) / 2 for key in keys}


def apply_function(outcomes: Outcomes, function: Mapping[Any, int]) -> dict[Any, Fraction]:
    """Return the distribution of a function of a mechanism's outcome."""
    results: dict[Any, Fraction] = {}
    for output, share in outcomes.items():
        results[function[output]] = results.get(function[output], Fraction(0)) + share
    return results


def list_pairs(distributions: Sequence[Outcomes]) -> Iterator[tuple[Outcomes, Outcomes]]:
    """Return every pair of distributions."""
    return itertools.combinations(distributions, 2)


def test_no_function_of_a_report_loses_more_than_the_report() -> None:
    """No function of a report, and no mixture of two functions, loses more than the report.

    All 81 functions of the four reports to three results are enumerated.
    """
    outputs = sorted(REPORTS[0])
    assert len(outputs) == 4
    whole = max(itertools.starmap(worst_ratio, list_pairs(REPORTS)))
    assert math.log(whole) == pytest.approx(epsilon_1(TWO_BITS), rel=1e-9)
    functions = [
        [apply_function(report, dict(zip(outputs, results, strict=True))) for report in REPORTS]
        for results in itertools.product(range(3), repeat=4)
    ]
    assert len(functions) == 81
    losses = [
        max(itertools.starmap(worst_ratio, list_pairs(distributions)))
        for distributions in functions
    ]
    assert max(losses) == whole
    assert min(losses) == 1  # a constant function has the loss 0
    for first, second in itertools.combinations(functions, 2):
        drawn = [
            mix(first_share, second_share)
            for first_share, second_share in zip(first, second, strict=True)
        ]
        assert max(itertools.starmap(worst_ratio, list_pairs(drawn))) <= whole


def survey_outcomes(survey: CoinSurvey) -> tuple[Outcomes, Outcomes]:
    """Return the probabilities of the answers without and with the property."""
    pair = Fraction(survey.p), Fraction(survey.q)
    return tuple({True: yes, False: 1 - yes} for yes in pair)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("first_survey", "second_survey"),
    [
        (CoinSurvey(0.5, 0.5), CoinSurvey(0.25, 0.125)),
        (CoinSurvey(0.5, 0.5), CoinSurvey(0.5, 0.25)),
        (CoinSurvey.at(MOST_EPSILON), CoinSurvey.at(0.1)),
    ],
)
def test_an_even_mixture_of_two_private_mechanisms_is_one(
    first_survey: CoinSurvey, second_survey: CoinSurvey
) -> None:
    """A mixture by a fair coin loses at most the larger epsilon of both mechanisms.

    At any epsilon, its delta is at most the mean of the two deltas.
    """
    first, second = survey_outcomes(first_survey), survey_outcomes(second_survey)
    both = tuple(mix(a, b) for a, b in zip(first, second, strict=True))
    assert worst_ratio(*both) <= max(worst_ratio(*first), worst_ratio(*second))
    for e in (Fraction(1), Fraction(3, 2), Fraction(3), Fraction(10)):
        for turn in (1, -1):
            deltas = [compute_delta(e, *pair[::turn]) for pair in (first, second, both)]
            assert deltas[2] <= (deltas[0] + deltas[1]) / 2

"""Generalized randomized response (GRR): known answers, and the exact distribution over all coins.

A set owns n buckets after padding or cutting. A report names one of k buckets: one of the n own
buckets with probability `keep`, else one of all k.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import reference
from enumeration import choose_own_buckets, enumerate_buckets
from hypothesis import given
from hypothesis import strategies as st

from rappor import ParamsError, epsilon_1, epsilon_inf
from rappor.protocol.encodings import get_encoder
from rappor.protocol.loss import epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.profiles import compute_keep_threshold, compute_set_buckets
from rappor.protocol.randomizer import (
    derive_cohort,
    derive_permanent_coins,
    derive_permanent_response,
    draw_permanent_response,
)
from rappor.protocol.responses.generalized_response import GeneralizedResponse
from rappor.protocol.thresholds import ONE

KNOWN = json.loads(
    (Path(__file__).parent / "data" / "known_answers.json").read_text(encoding="ascii")
)["grr"]

SMALL = [(3, 1, 0.5), (4, 2, 0.3), (5, 2, 0.8), (6, 3, 0.48), (7, 3, 0.9), (2, 1, 0.001)]
"""Triples k, n, keep that are small enough to enumerate all coins for every set of own buckets."""

SHAPES = [(n, k) for n in (1, 2, 3, 8, 64) for k in (3, 24, 65, 464, 2040) if n < k]
"""Pairs n, k of parameter sets whose reports depend on the value."""

every_small_size = pytest.mark.parametrize(("k", "n", "keep"), SMALL)


def make_params(k: int, n: int, keep: float) -> Params:
    """Return parameters of sets with one cohort."""
    return Params(k=k, m=1, items=n, keep=keep, encoding="set")


def get_threshold(params: Params) -> int:
    """Return the threshold of `keep`."""
    assert isinstance(params.response, GeneralizedResponse)
    return params.response.t_keep


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row["metric"])
def test_the_report_of_a_device(row: dict[str, Any]) -> None:
    """A device makes the known report, which code written from the specification alone computed."""
    fields = row["params"] | {"categories": tuple(row["params"]["categories"])}
    params = Params(**fields, interval=row["interval"], epoch=row["epoch_length"])
    assert get_threshold(params) == row["keep_threshold"]
    assert epsilon_1(params) == pytest.approx(row["epsilon"], abs=1e-15)
    assert params.fingerprint == row["fingerprint"]
    assert params.permanent_fingerprint == row["permanent_fingerprint"]
    scope = (bytes.fromhex(row["secret"]), row["metric"], row["epoch"], params)
    assert derive_cohort(*scope) == row["cohort"]
    bits = reference.pack([int(i in row["own"]) for i in range(params.k)])
    if row["values"] is not None:
        assert get_encoder(params).encode(row["values"], row["cohort"]) == bits
    coins = derive_permanent_coins(*scope, bits)
    assert choose_own_buckets(params, bits, coins) == row["chosen"]
    report = reference.unpack(derive_permanent_response(*scope, bits), params.k)
    assert [i for i, bit in enumerate(report) if bit] == [row["bucket"]]


@pytest.mark.slow
@every_small_size
def test_every_bucket_has_its_probability(k: int, n: int, keep: float) -> None:
    """Every bucket has exactly its probability in a report, whatever the set contains.

    A report names a bucket with probability q* if the bucket is one of the n, and p* if not. An own
    bucket of a large set may be cut, and another bucket may be padding of a small set.
    """
    params = make_params(k, n, keep)
    for mask in range(2**k):
        exact = enumerate_buckets(mask.to_bytes(1, "little"), params)
        assert sum(exact.values()) == 1
        by_bucket = [exact.get((1 << i).to_bytes(1, "little"), Fraction(0)) for i in range(k)]
        assert sum(by_bucket) == 1, "a report names exactly one bucket"
        n_own = mask.bit_count()
        # Probability that an own bucket survives the cutting, and that another bucket is padding.
        # Cutting and padding prefer no bucket.
        is_own = min(1.0, n / n_own) if n_own else 0.0
        is_padding = max(0, n - n_own) / (k - n_own) if n_own < k else 0.0
        for i, probability in enumerate(by_bucket):
            share = is_own if mask >> i & 1 else is_padding
            expected = params.p_star + (params.q_star - params.p_star) * share
            # The indices of a list have floor or ceil(2^32 / length) coins.
            assert float(probability) == pytest.approx(expected, abs=4 * 2**-32)


@every_small_size
def test_probabilities_of_the_regression_have_the_mean_of_a_set(
    k: int, n: int, keep: float
) -> None:
    """Both probabilities, p' and q', give one bucket the mean of a report of a set.

    The probabilities of all k buckets sum to 1. A device without the item owns the bucket of the
    item with probability n / k.
    """
    params = make_params(k, n, keep)
    p, q = params.response.regression_probabilities
    assert q + (k - 1) * p == pytest.approx(1, rel=1e-12)
    # The factor of the item's share, if a device owns one bucket, and if it owns n buckets.
    of_one_bucket = q - (q / k + (1 - 1 / k) * p)
    of_set = params.q_star - (n / k * params.q_star + (1 - n / k) * params.p_star)
    assert of_one_bucket == pytest.approx(of_set, rel=1e-9)


@pytest.mark.slow
@every_small_size
def test_the_loss_is_reached_and_never_exceeded(k: int, n: int, keep: float) -> None:
    """The largest ratio of a report's probabilities under two sets is exactly e^epsilon_1.

    The ratio is computed for all pairs of sets and all reports. The bound is the formula of the
    specification: 1 + t ceil(2^32 / n) / ((2^32 - t) floor(2^32 / k)).
    """
    params = make_params(k, n, keep)
    exact = [enumerate_buckets(mask.to_bytes(1, "little"), params) for mask in range(2**k)]
    reports = [(1 << i).to_bytes(1, "little") for i in range(k)]
    ratio = max(
        max(distribution[report] for distribution in exact)
        / min(distribution[report] for distribution in exact)
        for report in reports
    )
    t = get_threshold(params)
    bound = 1 + Fraction(t * math.ceil(Fraction(ONE, n)), (ONE - t) * (ONE // k))
    assert ratio == bound
    assert epsilon_1(params) == pytest.approx(math.log(bound), rel=1e-12)


def test_any_number_of_reports_loses_as_much_as_one() -> None:
    """Any number of reports lose as much as one report, because a device repeats its report."""
    params = Params.profile("once", encoding="set", items=8)
    assert epsilon_1(params) == epsilon_n(params, 10**6) == epsilon_inf(params) <= 4


@pytest.mark.slow
@given(
    st.sampled_from([(3, 1), (12, 5), (24, 8), (2040, 64)]),
    st.data(),
    st.floats(0.01, 0.99),
)
def test_agrees_with_the_reference(shape: tuple[int, int], data: Any, keep: float) -> None:
    """For the same coins, the device and the reference implementation report the same bucket.

    Coins at the threshold and at the end of the range are drawn often, because mistakes sit there.
    """
    k, n = shape
    params = make_params(k, n, keep)
    own_buckets = sorted(data.draw(st.sets(st.integers(0, k - 1), max_size=n + 4)))
    coin = st.one_of(st.integers(0, ONE - 1), st.just(get_threshold(params)), st.just(ONE - 1))
    coins = data.draw(st.lists(coin, min_size=n + 2, max_size=n + 2))
    bits = reference.pack([int(i in own_buckets) for i in range(k)])
    report = draw_permanent_response(bits, params, lambda _: coins)
    bucket = reference.draw_bucket(own_buckets, k, n, get_threshold(params), coins)
    assert report == reference.pack([int(i == bucket) for i in range(k)])
    assert choose_own_buckets(params, bits, coins) == reference.choose_own_buckets(
        own_buckets, k, n, coins
    )


@pytest.mark.parametrize("epsilon", [0.1, 1, 2, 4, 8])
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_threshold_is_the_largest_that_keeps_the_promise(
    epsilon: float, n: int, k: int
) -> None:
    """`compute_keep_threshold` returns the largest threshold whose loss keeps the promise.

    A smaller threshold would waste accuracy, and a larger one would break the promise.
    """
    t = compute_keep_threshold(epsilon, k, n)
    assert epsilon_1(make_params(k, n, t / ONE)) <= epsilon
    assert epsilon_1(make_params(k, n, (t + 1) / ONE)) > epsilon


@pytest.mark.parametrize(
    ("items", "k", "t"),
    [
        (1, 56, 2100421408),
        (2, 112, 2100421408),
        (4, 232, 2062778827),
        (8, 464, 2062778827),
        (16, 920, 2072062255),
        (32, 1840, 2072062255),
        (64, 2040, 2693270299),
    ],
)
def test_sets_of_the_profile(items: int, k: int, t: int) -> None:
    """Under `once`, the numbers of buckets and the thresholds of sets never change.

    Both are part of the fingerprint, so a collector would refuse reports of another version.
    """
    params = Params.profile("once", encoding="set", items=items)
    assert (params.k, get_threshold(params), params.m, params.items) == (k, t, 128, items)


@pytest.mark.parametrize("n", [1, 2, 5, 8, 16])
def test_the_number_of_buckets_has_the_least_variance(n: int) -> None:
    """The profile's number of buckets minimises the variance of a rare item's share, within 0.1 %.

    More buckets have fewer collisions, and need more noise for the same loss.
    """

    def compute_variance(k: int) -> float:
        params = make_params(k, n, compute_keep_threshold(4, k, n) / ONE)
        # Weighted least squares of one cohort, whose bits are 1 with probability 1/k on average and
        # whose column of an item is (k - n) / (k - 1) (1[bit is the bucket of the item] - 1/k).
        gap = params.q_star - params.p_star
        return (k - 1) / (gap * (k - n)) ** 2

    best = compute_variance(compute_set_buckets(4, n))
    assert best <= 1.001 * min(map(compute_variance, range(n + 1, 2041)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"keep": 0}, "keep must be a number in"),
        ({"keep": 1}, "keep must be a number in"),
        ({"keep": math.nan}, "keep must be a number in"),
        ({"keep": True}, "keep must be a number in"),
        ({"keep": 1e-11}, r"keep must be in \[2\^-32, 1 - 2\^-32\], got 1e-11"),
        ({"keep": 1 - 1e-11}, r"keep must be in \[2\^-32, 1 - 2\^-32\]"),
        ({"keep": None}, "keep must be given for encoding set"),
        ({"items": 0}, "items must be an integer in"),
        ({"items": 65}, r"items must be an integer in \[1, 64\], got 65"),
        ({"items": 8, "k": 8}, "items must be less than k"),
        ({"items": 1.0}, "items must be an integer"),
        ({"f": 0.5}, "f must be absent beside keep"),
        ({"f": math.nan}, "f must be absent beside keep"),
        ({"p": 0.5}, "p must be absent beside keep"),
        ({"q": 0.5}, "q must be absent beside keep"),
        ({"g": 0.2}, "g must be absent beside keep"),
        ({"h": 2}, "h must be absent beside keep, got 2"),
        ({"part": "whole"}, "part must be absent for encoding set"),
        ({"categories": ("a",)}, "categories must be empty"),
        ({"encoding": "bloom"}, "keep must be absent for encoding bloom"),
        ({"encoding": "boolean", "k": 1, "items": 1}, "keep must be absent for encoding boolean"),
        (
            {"encoding": "onehot", "categories": ("a", "b"), "k": 2, "items": 1},
            "k must be 3, the number of bits that the categories need, got 2",
        ),
        (
            {"encoding": "onehot", "categories": ("a", "b"), "k": 3, "items": 2},
            "items must be absent for encoding onehot, got 2",
        ),
        ({"encoding": "buckets", "categories": ("1",), "k": 2, "items": 1}, "k must be 3"),
    ],
)
def test_wrong_parameters_are_refused(fields: dict[str, Any], message: str) -> None:
    """Wrong parameters of GRR are refused, and the message has the parameter and its range.

    Parameters of separate noise for each bit (f, g, p, q, h) do not exist beside `keep`.
    """
    good: dict[str, Any] = {"k": 24, "items": 2, "keep": 0.5, "encoding": "set"}
    with pytest.raises(ParamsError, match=message):
        Params(**good | fields)


def test_without_keep_all_other_probabilities_are_needed() -> None:
    """Without `keep`, every bit has noise of its own, so f, p and q must be given."""
    with pytest.raises(ParamsError, match="f must be a number in"):
        Params(k=8, p=0.25, q=0.75)
    with pytest.raises(ParamsError, match="items must be absent for encoding bloom, got 2"):
        Params(k=8, f=0.5, p=0.25, q=0.75, items=2)


@pytest.mark.parametrize("name", ["strict", "balanced", "low-noise"])
def test_profiles_of_many_reports_have_no_sets(name: str) -> None:
    """Profiles for many reports in an epoch refuse sets, which have GRR, one report in an epoch."""
    with pytest.raises(ParamsError, match="profile must be once for encoding set"):
        Params.profile(name, encoding="set")


def test_params_of_grr_are_written_and_read() -> None:
    """The JSON has the keys of GRR only, and is read back to an equal parameter set."""
    params = make_params(24, 2, 0.5)
    text = params.to_json()
    assert text == '{"encoding":"set","items":2,"k":24,"keep":2147483648,"m":1,"v":1}'
    assert Params.from_json(text) == params
    assert params.letters == {"k": 24, "m": 1, "items": 2, "keep": 0.5}
    for wrong in ('"items":2.0', '"items":true', '"items":2,"h":1', '"items":2,"f":0'):
        with pytest.raises(ParamsError, match=r"JSON as written by|items must be an integer in"):
            Params.from_json(text.replace('"items":2', wrong))
    with pytest.raises(ParamsError, match=r"JSON as written by .* got KeyError"):
        Params.from_json(text.replace('"keep":2147483648', '"keep":null'))

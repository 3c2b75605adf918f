# %% [markdown]
# # Mechanisms compared, and a billion devices
#
# A researcher asks three questions:
#
# 1. Which design of a report has the smallest errors, if all designs have the same epsilon?
# 2. How much larger are the errors if nobody but the device itself is trusted?
# 3. How many more words do more devices detect?
#
# Simulations answer the first and the third. Where a formula exists, its result stands beside
# the simulated one.
#
# Run it as a program (`python rappor/examples/researcher_population.py`), or cell by cell in an
# editor that knows `# %%`. It needs `pip install 'rappor[analysis]'` and takes some ten seconds.

# %%
"""Compare designs of a report at one epsilon, and simulate up to a billion devices."""

import math

import numpy as np

from rappor import Params, Population, decode, simulate_counts
from rappor.planning import compute_standard_error
from rappor.privacy import epsilon_n
from rappor.simulation import english_words
from rappor.trust.models import trust_models

# %% [markdown]
# ## Which design has the least variance?
#
# Four designs report one of 100 values. Each device sends one report with epsilon = 1, and has
# no permanent response (`f = 0`). Half of the values are absent: no device has them, so that any
# count estimated for them is an error.
#
# The parameters: `k` bits in a report; `h` hash functions and `m` cohorts of a Bloom filter; `p`
# and `q`, the probabilities that a reported bit is 1 if the true bit is 0 or 1. The two designs
# with `q = 1/2` report a true 1 by a fair coin and have one wrong-bit probability, `p`, for a true
# 0. In the symmetric designs a bit is wrong with the same probability whether it is 0 or 1.

# %%
EPSILON = 1.0
"""Privacy loss of one report, in nats. A larger value makes fewer bits wrong, so it makes the
estimates more accurate and the reports less private."""

N_REPORTS = 100_000
"""Number of reports of each simulated collection. The standard error of a count grows with the
square root of this number."""

N_RUNS = 10
"""Collections simulated for each design. With 50 absent values they give 500 errors."""

VALUES = [f"value {i:02}" for i in range(100)]
"""Candidates of the decoder. Devices have the first 50 values. The true count of the last 50 values
is 0, so their estimates are errors."""

PRESENT, ABSENT = VALUES[:50], VALUES[50:]
"""Values that devices have, and values that no device has."""


def wrong_bit_probability(n_bits: float) -> float:
    """Return the probability of a wrong bit if epsilon is divided equally among ``n_bits`` bits.

    A bit that is wrong with probability ``w`` has a loss of ``ln((1 - w) / w)``.
    """
    return 1 / (math.exp(EPSILON / n_bits) + 1)


# The true bits of two values differ in up to 2 h bits (h = 1 if one-hot). Value A sets h of these
# bits, and value B sets the other h bits. The privacy loss of a report is the sum over these bits.
#
# - Symmetric (q = 1 - p): each of the 2 h bits has the loss ln((1 - p) / p), so epsilon is divided
#   among 2 h bits.
# - q = 1/2: take one bit of A and one bit of B together. The pair reveals most if the report has a
#   1 for the bit of A and a 0 for the bit of B. This has the probability q (1 - p) if the value is
#   A, and p (1 - q) if the value is B. The loss of the pair is the logarithm of the ratio of these
#   probabilities: ln((1 - p) / p) for q = 1/2, as much as the loss of one symmetric bit. So epsilon
#   is divided among h pairs.
designs = {
    "one-hot, q = 1/2": Params(
        k=100, f=0, p=wrong_bit_probability(1), q=0.5, encoding="onehot", categories=tuple(VALUES)
    ),
    "Bloom, h = 1, q = 1/2": Params(k=128, h=1, m=64, f=0, p=wrong_bit_probability(1), q=0.5),
    "Bloom, h = 1, symmetric": Params(
        k=128, h=1, m=64, f=0, p=wrong_bit_probability(2), q=1 - wrong_bit_probability(2)
    ),
    "Bloom, h = 2, symmetric": Params(
        k=128, h=2, m=64, f=0, p=wrong_bit_probability(4), q=1 - wrong_bit_probability(4)
    ),
}


def measure_error(params: Params) -> float:
    """Return the root mean square error of the estimated counts of absent values, in reports."""
    # Present values have shares that fall as 1, 1/2, 1/3 and so on.
    population = Population(PRESENT, 1 / np.arange(1.0, 51))
    # A one-hot encoding has its candidates, the categories, in the parameters.
    candidates = None if params.encoding == "onehot" else VALUES
    errors: list[float] = []
    for seed in range(N_RUNS):
        counts = simulate_counts(population, params, n_reports=N_REPORTS, seed=seed)
        rows = decode(counts, candidates).rows()
        errors += [row["count"] for row in rows if row["candidate"] in ABSENT]
    return float(np.sqrt(np.mean(np.square(errors))))


print(f"Standard error of a count in {N_REPORTS:,} reports")
print(f"{'design':24}  epsilon  closed form  measured")
for name, params in designs.items():
    closed, error = compute_standard_error(params, N_REPORTS), measure_error(params)
    print(f"{name:24}  {epsilon_n(params, 1):7.3f}  {closed:11.0f}  {error:8.0f}")

# %% [markdown]
# The closed form contains the noise of the randomizer alone. The measured error of a Bloom filter
# also contains collisions: two values that set the same bits. More cohorts have fewer of them.
#
# ## How large are the errors if nobody is trusted?
#
# 30,000 of 100,000 devices have a property, and an analyst estimates this number. Each row of the
# table is one arrangement: who adds the noise, and whom the users trust not to read their data.
# All have the same epsilon; those of a shuffler and of Gaussian noise may exceed it with a small
# probability (delta).

# %%
print("\nStandard error of one count, by who must be trusted")
for model in trust_models(EPSILON, 100_000):
    print(
        f"{model.name:30} {model.trusted:12} {model.noise.std_error(30_000, 100_000):6.1f} devices"
    )

# %% [markdown]
# ## How many more words do more devices detect?
#
# The simulation draws the counts from their exact distribution and does not build any report, so
# a billion devices take no longer than a thousand. A hundred times more devices detect a share
# that is about ten times smaller.

# %%
population = english_words()
candidates = population.values[:1000]
truth = dict(zip(population.values, population.weights, strict=True))  # share of each word

print("\nFound among 1,000 words under the profile strict")
print("      devices  detected  95 % intervals that hold  total variation")
for n_devices in (10**6, 10**7, 10**8, 10**9):
    counts = simulate_counts(
        population, Params.profile("strict"), n_reports=n_devices, seed=n_devices
    )
    rows = list(decode(counts, candidates).rows())
    n_detected = sum(row["detected"] for row in rows)
    covered = np.mean([row["ci_low"] <= truth[row["candidate"]] <= row["ci_high"] for row in rows])
    estimated = {row["candidate"]: row["share"] for row in rows if row["detected"]}
    # A word that is not detected counts as estimated at 0.
    variation = sum(abs(truth[word] - estimated.get(word, 0.0)) for word in candidates) / 2
    print(f"{n_devices:13,} {n_detected:9} {covered:26.1%} {variation:16.4f}")

# %% [markdown]
# The total variation is half the sum, over all 1,000 words, of the absolute difference between
# the estimated and the true share. 0 is a perfect result.

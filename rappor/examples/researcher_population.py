# %% [markdown]
# # Mechanisms compared, and a billion devices
#
# A researcher wants to know how much accuracy a design costs at one epsilon, and what more
# devices change. Both questions are answered by simulation and, where there is one, by a closed
# form beside it.
#
# Run it as a program (`python rappor/examples/researcher_population.py`), or cell by cell in an
# editor that knows `# %%`. It needs `pip install 'rappor[analysis]'` and takes a few seconds.

# %%
"""A researcher's program: compare mechanisms at one epsilon, and simulate a billion devices."""

import math

import numpy as np

from rappor import Params, Population, decode, simulate_counts
from rappor.planning.detection_limit import compute_standard_error
from rappor.privacy import epsilon_n
from rappor.simulation import english_words
from rappor.trust.models import trust_models

# %% [markdown]
# ## Which design has the least variance?
#
# Four ways to report one of 100 values, each with one report at epsilon = 1 and no permanent
# response (f = 0). Half of the values are absent: the error of their estimates is noise alone.

# %%
EPSILON = 1.0
N_REPORTS = 100_000
N_RUNS = 10
VALUES = [f"value {i:02}" for i in range(100)]
PRESENT, ABSENT = VALUES[:50], VALUES[50:]


def flip(n_bits: float) -> float:
    """Return the probability of a wrong bit if this many bits share epsilon."""
    return 1 / (math.exp(EPSILON / n_bits) + 1)


designs = {
    "one-hot, q = 1/2": Params(
        k=100, f=0, p=flip(1), q=0.5, encoding="onehot", categories=tuple(VALUES)
    ),
    "Bloom, h = 1, q = 1/2": Params(k=128, h=1, m=64, f=0, p=flip(1), q=0.5),
    "Bloom, h = 1, symmetric": Params(k=128, h=1, m=64, f=0, p=flip(2), q=1 - flip(2)),
    "Bloom, h = 2, symmetric": Params(k=128, h=2, m=64, f=0, p=flip(4), q=1 - flip(4)),
}


def measured_error(params: Params) -> float:
    """Return the root mean square error of the counts of absent values, in reports."""
    population = Population(PRESENT, 1 / np.arange(1.0, 51))
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
    closed, error = compute_standard_error(params, N_REPORTS), measured_error(params)
    print(f"{name:24}  {epsilon_n(params, 1):7.3f}  {closed:11.0f}  {error:8.0f}")

# %% [markdown]
# The closed form is the noise of the randomizer alone. What a Bloom filter measures above it are
# collisions, which more cohorts lower.
#
# ## What does it cost to trust nobody?
#
# One question, how many of 100,000 devices have a property that 30,000 have, at one epsilon.

# %%
print("\nStandard error of one count, by who must be trusted")
for model in trust_models(EPSILON, 100_000):
    print(
        f"{model.name:30} {model.trusted:12} {model.noise.std_error(30_000, 100_000):6.1f} devices"
    )

# %% [markdown]
# ## What do more devices find?
#
# Counts are drawn from their exact distribution, so a billion devices take no longer than a
# thousand. A hundred times more devices find a share that is about ten times smaller.

# %%
population = english_words()
candidates = population.values[:1000]
truth = dict(zip(population.values, population.weights, strict=True))

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
    variation = sum(abs(truth[word] - estimated.get(word, 0.0)) for word in candidates) / 2
    print(f"{n_devices:13,} {n_detected:9} {covered:26.1%} {variation:16.4f}")

# %% [markdown]
# The total variation compares all 1,000 words with the truth and counts a word that was not
# detected as absent.

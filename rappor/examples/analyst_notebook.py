# %% [markdown]
# # One collection, from the plan to the estimates
#
# An analyst wants to know which words are common on a million devices. This notebook
#
# 1. plans the collection: how many words it will detect;
# 2. computes what a report reveals about a device;
# 3. simulates the reports and adds them up to counts;
# 4. decodes the counts, and compares the estimates with the truth, which only a simulation knows.
#
# Run it as a program (`python rappor/examples/analyst_notebook.py`), or cell by cell in an editor
# that knows `# %%`. It needs `pip install 'rappor[analysis]'` and takes a few seconds.

# %%
"""Plan a collection, simulate it, decode its counts and compare the estimates with the truth."""

import datetime
import math

from rappor import (
    Candidates,
    Metric,
    Params,
    decode,
    epsilon_inf,
    predict_power,
    privacy_notice,
    simulate_counts,
)
from rappor.privacy import epsilon_n, posterior_bound
from rappor.simulation import english_words

N_DEVICES = 1_000_000
"""Devices of the simulated collection. Each sends one report."""

N_CANDIDATES = 10_000
"""Number of candidates: the most frequent words of English. The decoder estimates the count of each
candidate, and detects a candidate only if its share is large enough."""

# %% [markdown]
# ## Plan
#
# How many words does the profile `balanced` detect? The prediction assumes Zipf's law: the word
# of rank `r` is held by a share of the devices proportional to `1 / r`.

# %%
params = Params.profile("balanced")
expected = predict_power(params, N_CANDIDATES, reports=N_DEVICES)
print(f"{N_DEVICES:,} reports find about {expected.prediction.expected_detections:.0f} words,")
print(f"and a word on {expected.share:.2%} of the devices with 80 % probability.")

wanted = 0.001  # a share of the devices that the analyst wants to detect
needed = predict_power(params, N_CANDIDATES, share=wanted).reports
print(f"A word on {wanted:.1%} of the devices takes {needed:,} reports.\n")

# %% [markdown]
# ## Privacy
#
# An observer believes with a probability of 50 % that a device has a certain word. Which
# probability can this belief reach after the observer has read reports of the device?
#
# `epsilon` is the natural logarithm of the largest factor by which reports can change the odds.

# %%
# Epsilon by the number of reports of one word from one device.
losses = {f"{n} of them": epsilon_n(params, n) for n in (1, 2, 10)}
losses["any number"] = epsilon_inf(params)
print("Reports of one word, and what a belief of 50 % can become")
for reports, epsilon in losses.items():
    _, most = posterior_bound(epsilon, prior=0.5)
    # An upper bound is rounded up, to a tenth of a percent, so that it stays an upper bound.
    print(f"{reports:10}  epsilon = {epsilon:.2f}, at most {math.ceil(1000 * most) / 10} % sure")
print()

# %% [markdown]
# The notice that the users of the devices read:

# %%
metric = Metric(
    name="word",
    params=params,
    epoch="quarter",
    expires=datetime.date(2100, 1, 1),
    description="The word that a device holds",
    owner="words@example.org",
)
print(privacy_notice(metric), "\n")

# %% [markdown]
# ## Collect
#
# An analyst does not receive reports. An analyst receives counts: for each cohort, the number of
# reports, and for each bit the number of reports in which it is 1. Here they are simulated.
# `Counts.load` reads those of a real collection from the file that a collector or
# `rappor aggregate` writes.

# %%
population = english_words()
counts = simulate_counts(population, params, n_reports=N_DEVICES, seed=1, metric=metric.name)
print(counts)

# %% [markdown]
# ## Decode
#
# Words cannot be read back from counts of hashed bits, so the analyst lists candidates. Each
# candidate gets an estimate, a standard error and a confidence interval, whether it is detected
# or not.

# %%
candidates = Candidates.from_list(population.values[:N_CANDIDATES])
estimates = decode(counts, candidates)
print(estimates, "\n")

# %% [markdown]
# ## Compare with the truth
#
# A simulation knows the share of each word, so the estimates can be checked. Two properties are
# expected: at a false discovery rate of 5 %, about one detected word in twenty is rare; and about
# 95 % of the confidence intervals contain the true share.

# %%
truth = dict(zip(population.values, population.weights, strict=True))  # share of each word
rows = list(estimates.rows())
covered = sum(row["ci_low"] <= truth[row["candidate"]] <= row["ci_high"] for row in rows)
detected = [row for row in rows if row["detected"]]
# "Rare": the true share is below half of the share that the analyst wants to detect.
rare = [row["candidate"] for row in detected if truth[row["candidate"]] < wanted / 2]
print(f"{len(detected)} words detected, {len(rare)} of them rare in truth: {', '.join(rare)}")
print(f"{covered / len(rows):.1%} of {len(rows):,} intervals contain the truth.")
print(f"{estimates.unallocated:.1%} of the reports belong to no detected word.")

# %% [markdown]
# `estimates.to_csv("words.csv")` writes the whole table to a file. `estimates.to_pandas()` and
# `estimates.to_arrow()` convert it for other libraries. The columns of the table:

# %%
print(estimates.to_csv(detected_only=True).splitlines()[0])

# %% [markdown]
# # One collection, from the plan to the estimates
#
# An analyst wants to know which words are common on a million devices. This notebook plans the
# collection, says what it costs the people concerned, simulates it and reads the estimates
# beside the truth, which only a simulation knows.
#
# Run it as a program (`python rappor/examples/analyst_notebook.py`), or cell by cell in an editor
# that knows `# %%`. It needs `pip install 'rappor[analysis]'` and takes a few seconds.

# %%
"""An analyst's notebook: plan a collection, simulate it, decode it and look at the result."""

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
N_CANDIDATES = 10_000

# %% [markdown]
# ## Plan
#
# What would the profile `balanced` find? The prediction is for words that follow Zipf's law.

# %%
params = Params.profile("balanced")
expected = predict_power(params, N_CANDIDATES, reports=N_DEVICES)
print(f"{N_DEVICES:,} reports find about {expected.prediction.found:.0f} words,")
print(f"and a word on {expected.share:.2%} of the devices with 80 % probability.")

wanted = 0.001
needed = predict_power(params, N_CANDIDATES, share=wanted).reports
print(f"A word on {wanted:.1%} of the devices takes {needed:,} reports.\n")

# %% [markdown]
# ## Privacy
#
# Somebody thinks it 50 % likely that a device has some word. How sure can they become?

# %%
losses = {f"{n} of them": epsilon_n(params, n) for n in (1, 2, 10)}
losses["any number"] = epsilon_inf(params)
print("Reports of one word, and what a belief of 50 % can become")
for reports, epsilon in losses.items():
    _, most = posterior_bound(epsilon, prior=0.5)
    # A bound is rounded up.
    print(f"{reports:10}  epsilon = {epsilon:.2f}, at most {math.ceil(1000 * most) / 10} % sure")
print()

# %% [markdown]
# This is what the people concerned read:

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
# Counts are all that an analyst gets: for each cohort, how many reports came and how often each
# bit was 1. `Counts.load` reads the file that a collector or `rappor aggregate` writes.

# %%
population = english_words()
counts = simulate_counts(population, params, n_reports=N_DEVICES, seed=1, metric=metric.name)
print(counts)

# %% [markdown]
# ## Decode
#
# The candidates are the words that the analyst can think of. Every one of them gets an estimate,
# a standard error and an interval, whether it is detected or not.

# %%
candidates = Candidates.from_list(population.values[:N_CANDIDATES])
estimates = decode(counts, candidates)
print(estimates, "\n")

# %% [markdown]
# ## Look
#
# A simulation knows the truth, so that the estimates can be checked: at a false discovery rate
# of 5 % about one detected word in twenty is rare in truth, and 95 % of the intervals hold.

# %%
truth = dict(zip(population.values, population.weights, strict=True))
rows = list(estimates.rows())
covered = sum(row["ci_low"] <= truth[row["candidate"]] <= row["ci_high"] for row in rows)
detected = [row for row in rows if row["detected"]]
rare = [row["candidate"] for row in detected if truth[row["candidate"]] < wanted / 2]
print(f"{len(detected)} words detected, {len(rare)} of them rare in truth: {', '.join(rare)}")
print(f"{covered / len(rows):.1%} of {len(rows):,} intervals contain the truth.")
print(f"{estimates.unallocated:.1%} of the reports belong to no detected word.")

# %% [markdown]
# The whole table goes to a file or to another library with `estimates.to_csv("words.csv")`,
# `estimates.to_pandas()` or `estimates.to_arrow()`.

# %%
print(estimates.to_csv(detected_only=True).splitlines()[0])

# %% [markdown]
# # Which editor on which system?
#
# A team asks a joint question about two fields of a device. One metric of tuples answers it: a
# device sends one report of both fields, with the whole privacy budget. Two metrics of one field
# each would show how common each editor and each system is, and not which go together.
#
# Run it as a program (`python rappor/examples/two_fields.py`), or cell by cell in an editor that
# knows `# %%`. It needs `pip install 'rappor[analysis]'` and takes a few seconds.

# %%
"""Ask for two fields with one metric, and estimate how they depend on each other."""

from rappor import (
    Population,
    Registry,
    associate,
    decode,
    encode_value,
    privacy_notice,
    simulate_counts,
)

# %% [markdown]
# ## The metric
#
# Each field has a list of categories. Devices record `other` for a value that is in no list. A
# field without `other` would lose the whole tuple of such a device.

# %%
REGISTRY = """
[budget]
total = 16

[metrics.editor_by_system]
description = "Editor and operating system"
owner = "tools@example.org"
expires = 2099-12-31
encoding = "onehot"
categories = {editor = ["vim", "code", "other"], system = ["linux", "mac", "other"]}
profile = "once"
epoch = "quarter"
interval = "epoch"
"""

metric = Registry.loads(REGISTRY)["editor_by_system"]
print(privacy_notice(metric).splitlines()[2])

# %% [markdown]
# ## One device
#
# A program records a mapping. The report names one bucket: one for each of the nine combinations,
# and one for all other tuples. The order of the keys does not matter.

# %%
SECRET = bytes(range(32))

for value in (
    {"editor": "vim", "system": "linux"},
    {"system": "linux", "editor": "vim"},
):
    report = encode_value(SECRET, metric, value, epoch="2026-Q4").report
    print(f"{value}: report {report.bits.hex()} of parameters {report.params}")

# %% [markdown]
# ## Five thousand devices
#
# The joint distribution is known here, because the devices are simulated: vim is twice as common
# on Linux as on a Mac.

# %%
JOINT = {
    ("vim", "linux"): 0.20,
    ("vim", "mac"): 0.10,
    ("vim", "other"): 0.05,
    ("code", "linux"): 0.15,
    ("code", "mac"): 0.20,
    ("code", "other"): 0.15,
    ("other", "linux"): 0.05,
    ("other", "mac"): 0.05,
    ("other", "other"): 0.05,
}
"""Share of the devices that have each combination."""

counts = simulate_counts(Population.of_tuples(JOINT), metric.params, n_reports=5_000, seed=1)
association = associate(decode(counts))

print(f"{'':<8}" + "".join(f"{system:>22}" for system in association.column_values))
for i, editor in enumerate(association.row_values):
    cells = (
        f"{association.cells.share[i, j]:6.1%} +- {association.cells.std_error[i, j]:.1%}"
        f" ({JOINT[editor, system]:.0%})"
        for j, system in enumerate(association.column_values)
    )
    print(f"{editor:<8}" + "".join(f"{cell:>22}" for cell in cells))
print(f"p-value of independence: {association.independence.p_value:.2g}")

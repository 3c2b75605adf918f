"""Collections of a metric with `other`: each device answers for its category, and for its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rappor.counts.counts import Counts
from rappor.ground.ranges import read_count
from rappor.protocol.params import Params
from rappor.protocol.parts import Part, check_parts
from rappor.simulation.collection import MOST_DEVICES, People, add_noise
from rappor.simulation.keystream import Keystream
from rappor.simulation.parts import shares_of
from rappor.simulation.population import Population


def simulate_other(
    population: Population,
    pair: tuple[Params, Params],
    parts: Sequence[Part],
    *,
    n_reports: float,
    seed: int | None = None,
    metric: str = "",
) -> tuple[Counts, ...]:
    """Draw both reports of each of `n_reports` devices: of its category, and of one part of a text.

    Both are of the same devices: their values are drawn once. `pair` are the parameters of the
    categories and of the texts, as `rappor.registry.other.with_other` returns them. The first
    collection is that of the categories, the others are those of the parts.

    Raises ParamsError and ReportError as `simulate_counts`, or if the parts are not those of a
    metric.
    """
    check_parts(parts)
    categories, texts = pair
    n_devices = read_count("n_reports", n_reports, 0, MOST_DEVICES)
    rng = Keystream(seed).generator()
    people = People(population, categories)
    held, reports, true_ones = people.draw(rng, n_devices)
    drawn = [add_noise(rng, categories, reports, true_ones, metric=metric)]
    by_part = rng.multinomial(held, shares_of(parts))
    for part, devices in zip(parts, by_part.T, strict=True):
        params = dataclasses.replace(texts, part=part.name, insecure=True)
        spread = People(population, params).spread(rng, np.ascontiguousarray(devices))
        drawn.append(add_noise(rng, params, *spread, metric=f"{metric}.other" if metric else ""))
    return tuple(drawn)

"""Collections of a metric with parts: each device answers for one part of its string."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rappor.base.ranges import read_count
from rappor.counts.counts import Counts
from rappor.protocol.params import Params
from rappor.protocol.parts import Part, check_parts
from rappor.simulation.collection import MOST_DEVICES, simulate_counts
from rappor.simulation.keystream import Keystream
from rappor.simulation.population import Population


def simulate_parts(
    population: Population,
    params: Params,
    parts: Sequence[Part],
    *,
    n_reports: float,
    seed: int | None = None,
    metric: str = "",
) -> tuple[Counts, ...]:
    """Draw the counts of one report from each of `n_reports` devices, a collection for each part.

    Which part a device answers for depends on its coins only, so the devices of a part are a random
    share of all.

    Raises ParamsError and ReportError as `simulate_counts`, or if the parts are not those of a
    metric.

    Examples
    --------
    >>> from rappor import Params, Population
    >>> from rappor.protocol.parts import Part
    >>> pets = Population(["kitten", "puppy"], [3, 1])
    >>> parts = [Part("prefix:3", 0.5), Part("whole")]
    >>> drawn = simulate_parts(pets, Params.profile("balanced"), parts, n_reports=1e4, seed=1)
    >>> [counts.params.part for counts in drawn]
    ['prefix:3', 'whole']
    """
    check_parts(parts)
    n_devices = read_count("n_reports", n_reports, 0, MOST_DEVICES)
    return tuple(
        simulate_counts(
            population,
            dataclasses.replace(params, part=part.name, insecure=True),
            n_reports=n,
            seed=own,
            metric=metric,
        )
        for part, n, own in split_devices(parts, n_devices, seed)
    )


def split_devices(
    parts: Sequence[Part], n_devices: int, seed: int | None
) -> Iterator[tuple[Part, int, int]]:
    """Draw how many of the devices answer for each part; yield it with these and their own seed."""
    stream = Keystream(seed)
    numbers = stream.spawn(0).generator().multinomial(n_devices, part_shares(parts))
    for number, (part, n) in enumerate(zip(parts, numbers.tolist(), strict=True), start=1):
        yield part, n, int.from_bytes(stream.spawn(number).coins(8).tobytes(), "little")


def part_shares(parts: Sequence[Part]) -> list[float]:
    """Return the share of the devices that answer for each part."""
    shares = [part.threshold / 2**32 for part in parts[:-1]]
    return [*shares, 1 - sum(shares)]

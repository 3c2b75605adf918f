"""Simulated collections of a metric with parts: each device reports one part of its string."""

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
    """Draw the counts of one report from each of many devices, a collection for each part.

    The coins of a device decide which part it reports, so the devices of a part are a random sample
    of all devices.

    Parameters
    ----------
    population : strings and their shares.
    params : parameters of a string metric.
    parts : parts with their shares, as in a metric's entry.
    n_reports : number of devices, a whole number, which may be written as 1e6.
    seed : the same seed gives the same counts; None for different counts in every call.
    metric : name of the metric in the counts.

    Returns
    -------
    Counts of each part, in the order of the parts.

    Raises
    ------
    ParamsError
        n_reports is negative, the parts are not those of a metric, or the parameters have the hash
        layout of other software.
    ReportError
        The encoding cannot encode a value of the population.

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
            # `replace` checks the parameters again. The flag repeats the permission that the caller
            # may have given for insecure parameters.
            dataclasses.replace(params, part=part.name, insecure=True),
            n_reports=n,
            seed=part_seed,
            metric=metric,
        )
        for part, n, part_seed in split_devices(parts, n_devices, seed)
    )


def split_devices(
    parts: Sequence[Part], n_devices: int, seed: int | None
) -> Iterator[tuple[Part, int, int]]:
    """Draw the number of devices that report each part.

    Yields
    ------
    Part, number of devices, and a seed for the collection of the part.
    """
    stream = Keystream(seed)
    devices_by_part = stream.spawn(0).generator().multinomial(n_devices, compute_part_shares(parts))
    # Substream 0 draws the numbers of devices. Each part has its own seed, so that the collection
    # of a part does not depend on the other parts.
    parts_and_devices = zip(parts, devices_by_part.tolist(), strict=True)
    for index, (part, n) in enumerate(parts_and_devices, start=1):
        yield part, n, int.from_bytes(stream.spawn(index).coins(8).tobytes(), "little")


def compute_part_shares(parts: Sequence[Part]) -> list[float]:
    """Return the share of the devices that report each part. The last part takes the rest."""
    shares = [part.threshold / 2**32 for part in parts[:-1]]
    return [*shares, 1 - sum(shares)]

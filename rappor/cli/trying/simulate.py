"""`rappor simulate`: draws counts or reports of many simulated devices.

Counts are drawn from their exact distribution, without drawing single reports, so their time does
not depend on the number of devices. Files of reports and uploads need single reports.
"""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rappor.base.atomic_files import read_upload_key
from rappor.base.errors import CollectorError
from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, print_json
from rappor.cli.option_values import WholeNumber
from rappor.cli.options import (
    flag_field,
    json_option,
    metric_argument,
    option_field,
    option_group,
    registry_option,
    seed_option,
)
from rappor.protocol.params import Params
from rappor.registry.budget import LONGEST_EPOCH_DAYS
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rappor.counts.counts import Counts
    from rappor.protocol.wire import Report
    from rappor.simulation.population import Population

_BLOCK_REPORTS: Final = 1 << 16
"""Number of reports that are drawn and written at a time. A larger number needs more memory, and a
smaller number more calls of numpy."""

_MOST_DAYS: Final = 366
"""Largest number of simulated days, a leap year. Devices that come and go are drawn in groups by
their first and last day, so time and memory grow with the square of the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _SizeOptions:
    """Options for the number of devices and of their reports."""

    reports: int | None = option_field(
        WholeNumber(0), "Number of reports, each from a different device, such as 1e6."
    )
    devices: int | None = option_field(
        WholeNumber(0),
        "Number of devices, instead of --reports. With --days, the devices of each day.",
    )
    reports_per_device: int | None = option_field(
        WholeNumber(1, 10**6),
        "Number of reports of each device, with one value and one permanent noise.",
    )
    days: int | None = option_field(
        WholeNumber(1, _MOST_DAYS),
        'Number of days on which each device reports once. If the metric has interval = "epoch", '
        "an epoch begins on the first day, and a device reports on one random day of each epoch. "
        "Each day has its own file, with its number in the name.",
    )
    churn: float | None = option_field(
        "SHARE",
        "Share of the devices that new devices replace from one day to the next.  [default: 0]",
        type=click.FloatRange(0, 1),
    )

    def __post_init__(self) -> None:
        """Raise a usage error for options that contradict each other."""
        if (self.reports is None) == (self.devices is None):
            raise click.UsageError("give either --reports or --devices")
        if self.has_repeats and self.devices is None:
            raise click.UsageError(
                "give --devices instead of --reports with --reports-per-device or --days"
            )
        if self.reports_per_device is not None and self.days is not None:
            raise click.UsageError("give either --reports-per-device or --days")
        if self.churn is not None and self.days is None:
            raise click.UsageError("--churn needs --days")

    @property
    def has_repeats(self) -> bool:
        """Whether devices may report more than once."""
        return self.reports_per_device is not None or self.days is not None

    @property
    def n_devices(self) -> int:
        """The number of devices. With --days, the number of devices of each day."""
        return (self.reports if self.devices is None else self.devices) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetOptions:
    """Options for the target of the simulation: a file, a folder, or a collector."""

    out: str | None = option_field(
        "FILE",
        "Counts file to write. For a name that ends in .parquet, a file of single reports; for a "
        "name that ends in /, a folder of such files.",
    )
    to: str | None = option_field(
        "URL", "Address of a collector, which gets the reports over HTTP, as if devices sent them."
    )
    allow_http: bool = flag_field(
        "Allow http, without encryption, to a host name without a dot, such as a service of a "
        "container network. Everybody who can read that network then sees every report. Use it for "
        "trials only."
    )

    key_file: str | None = option_field(
        "FILE", "A file with the upload key alone, if the collector requires one."
    )

    def __post_init__(self) -> None:
        """Raise a usage error unless exactly one target is present."""
        if (self.out is None) == (self.to is None):
            raise click.UsageError("give either --out or --to")
        if self.allow_http and self.to is None:
            raise click.UsageError("--allow-http needs --to")
        if self.key_file is not None and self.to is None:
            raise click.UsageError("--key-file needs --to")

    @property
    def has_single_reports(self) -> bool:
        """Whether the target receives single reports. A counts file receives only their sums."""
        return self.out is None or _is_folder(self.out) or Path(self.out).suffix == ".parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceGroup:
    """Devices that report one part of the strings, or all devices of a metric without parts.

    Attributes
    ----------
    params : parameters of the part.
    n_devices : number of devices.
    seed : random seed of the group.
    suffix : name of the part, which becomes a part of the file's name.
    """

    params: Params
    n_devices: int
    seed: int | None
    suffix: str


@command(
    "rappor simulate search_engine --registry metrics.toml \\\n"
    "  --population population.csv --reports 1e6 --seed 1 --out week.counts",
    "rappor simulate search_engine --registry metrics.toml \\\n"
    "  --population population.csv --reports 1e4 --out reports.parquet",
    "rappor simulate search_engine --registry metrics.toml \\\n"
    "  --population population.csv --reports 1e5 --out reports/",
    "rappor simulate search_engine --registry metrics.toml \\\n"
    "  --population population.csv --devices 1e5 --days 7 --churn 0.1 \\\n"
    "  --out day.counts",
    "rappor simulate search_engine --registry metrics.toml \\\n"
    "  --population population.csv --reports 1e5 --to http://127.0.0.1:8080",
)
def simulate(
    *,
    metric_name: str = metric_argument(),
    registry_path: str = registry_option(),
    population_path: str = option_field(
        "FILE",
        "CSV file with the header value,weight: the values and their frequencies. Tabs separate "
        "the fields of a tuple and the items of a set.",
        required=True,
    ),
    size: _SizeOptions = option_group(_SizeOptions),
    segment: tuple[str, ...] = option_field(
        "NAME=VALUE",
        "Public property that all simulated devices have, for a metric with segments. May be "
        "repeated.",
        multiple=True,
    ),
    seed: int | None = seed_option(),
    target: _TargetOptions = option_group(_TargetOptions),
    as_json: bool = json_option(),
) -> None:
    """Simulate the counts or the reports of many devices.

    Each device draws a value of the population and sends one report, or several reports with the
    same value and the same permanent noise. Counts are drawn from their exact distribution, take
    the same time for any number of devices, and contain how often devices report. A .parquet file
    contains single reports, one for each device; a folder contains files of four million reports.
    Files and folders are written completely or not at all. A collector gets single reports, in
    uploads of 1,000, and counts them on the day of their arrival. For a metric with parts, each
    part has its own files, with the part in the name.
    """
    from rappor.simulation.population import Population

    registry = Registry.load(registry_path)
    metric = _select_segment(registry.metric(metric_name), segment)
    population = Population.from_csv(population_path)
    if target.has_single_reports and size.has_repeats:
        raise click.UsageError(
            "--days and --reports-per-device need a counts file: a collector, a .parquet file and "
            "a folder get one report of each device"
        )
    if metric.interval == "epoch" and (size.reports_per_device or 1) > 1:
        raise click.UsageError(
            f"--reports-per-device must be 1: a device reports {metric.name} once in an epoch; "
            "give --days of several epochs"
        )
    groups = _split_devices(metric, size, seed)
    if target.out is None:
        _send_reports(population, metric, groups, target, as_json=as_json)
        return
    out = target.out
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if target.has_single_reports:
        written = _write_reports(population, metric, groups, out)
    else:
        written = _save_counts(_simulate_counts(population, metric, size, groups), out)
    files, reports = zip(*written, strict=True)
    if as_json:
        head = {"metric": metric.name, "params": metric.fingerprint, "reports": sum(reports)}
        print_json(head | {"devices": size.n_devices, "out": out, "files": files})
    else:
        names = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
        click.echo(f"{format_count(sum(reports), 'report')} of {metric.name} in {names}")


def _select_segment(metric: Metric, pairs: Iterable[str]) -> Metric:
    """Return the metric with the parameters of the devices of one segment.

    Parameters
    ----------
    metric : the metric.
    pairs : public properties of the devices, in the form NAME=VALUE. Without properties, the metric
        is returned unchanged.
    """
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        # Case: a property without a value. It would silently become the value "other".
        if not equals:
            raise click.UsageError(f"--segment must be NAME=VALUE, got {pair!r}")
        if name not in {segment.name for segment in metric.segments}:
            raise click.UsageError(f"--segment must name a segment of {metric.name}, got {pair!r}")
        properties[name] = value
    return metric.in_segment(properties) if properties else metric


def _split_devices(metric: Metric, size: _SizeOptions, seed: int | None) -> Iterator[_DeviceGroup]:
    """Yield the devices of each part of the metric, or all devices of a metric without parts."""
    from rappor.simulation.part_collections import split_devices

    if not metric.parts:
        yield _DeviceGroup(params=metric.params, n_devices=size.n_devices, seed=seed, suffix="")
        return
    for part, n_devices, seed_of_part in split_devices(metric.parts, size.n_devices, seed):
        params = metric.part_params(part.name)
        yield _DeviceGroup(params=params, n_devices=n_devices, seed=seed_of_part, suffix=part.name)


def _simulate_counts(
    population: Population, metric: Metric, size: _SizeOptions, groups: Iterable[_DeviceGroup]
) -> Iterator[tuple[str, Counts]]:
    """Yield the counts of each group of devices and, with --days, of each day.

    Yields
    ------
    A suffix for the name of the counts file, such as "prefix:3-07" for a part and a day, and the
    counts. The suffix is empty if there is only one file.
    """
    from rappor.simulation.collection import simulate_counts
    from rappor.simulation.repeated_reports import simulate_days, simulate_repeated

    for group in groups:
        if size.days is not None:
            days = simulate_days(
                population,
                group.params,
                n_devices=group.n_devices,
                n_days=size.days,
                churn=size.churn or 0.0,
                # Every simulated epoch has the length of the longest one, because the simulation
                # has days, and no calendar.
                once_in=LONGEST_EPOCH_DAYS[metric.epoch] if metric.interval == "epoch" else None,
                seed=group.seed,
                metric=metric.name,
            )
            width = len(str(size.days))
            for day, counts in enumerate(days, start=1):
                yield "-".join(filter(None, (group.suffix, f"{day:0{width}}"))), counts
        elif size.reports_per_device is not None:
            # All devices of the group send the same number of reports.
            repeated = simulate_repeated(
                population,
                group.params,
                devices={size.reports_per_device: group.n_devices},
                seed=group.seed,
                metric=metric.name,
            )
            yield group.suffix, repeated.counts
        else:
            counts = simulate_counts(
                population,
                group.params,
                n_reports=group.n_devices,
                seed=group.seed,
                metric=metric.name,
            )
            yield group.suffix, counts


def _save_counts(collections: Iterable[tuple[str, Counts]], out: str) -> Iterator[tuple[str, int]]:
    """Write each counts to a file. Yield the path and the number of reports of each file."""
    for suffix, counts in collections:
        path = _add_suffix(out, suffix)
        counts.save(path)
        yield path, counts.n_reports


def _write_reports(
    population: Population, metric: Metric, groups: Iterable[_DeviceGroup], out: str
) -> Iterator[tuple[str, int]]:
    """Write the reports of each group. Yield the paths and the numbers of reports."""
    from rappor.engines import parquet

    write = parquet.write_parquet_folder if _is_folder(out) else parquet.write_parquet
    day = datetime.datetime.now(datetime.UTC).date()
    for group in groups:
        path = _add_suffix(out, group.suffix)
        with ProgressDisplay() as progress:
            blocks = _draw_blocks(population, group, progress)
            write(path, blocks, params=group.params, metric=metric.name, day=day)
        yield path, group.n_devices


def _send_reports(
    population: Population,
    metric: Metric,
    groups: Iterable[_DeviceGroup],
    target: _TargetOptions,
    *,
    as_json: bool,
) -> None:
    """Send the reports of each group, and print the number of accepted reports.

    Raises
    ------
    CollectorError
        The collector refused a report. The population of the accepted reports would differ from the
        simulated population, and estimates could not be compared with it.
    """
    from rappor.remote.bulk_upload import send_reports
    from rappor.remote.http_exchange import HttpExchange

    key = None if target.key_file is None else read_upload_key(target.key_file)
    statuses: Counter[str] = Counter()
    with ProgressDisplay() as progress:
        transport = HttpExchange(str(target.to), allow_http=target.allow_http)
        for group in groups:
            reports = _draw_reports(population, metric, group, progress)
            statuses += send_reports(transport, reports, key=key)
    refused = statuses.total() - statuses["accepted"]
    if refused:
        reasons = ", ".join(sorted(statuses.keys() - {"accepted"}))
        raise CollectorError(
            f"the collector refused {refused:,} of {statuses.total():,} reports: {reasons}"
        )
    if as_json:
        print_json({"metric": metric.name, "reports": statuses.total()})
    else:
        click.echo(f"{statuses.total():,} reports of {metric.name} were accepted")


def _draw_reports(
    population: Population, metric: Metric, group: _DeviceGroup, progress: ProgressDisplay
) -> Iterator[Report]:
    """Yield the reports of a group of devices."""
    from rappor.protocol.wire import Report

    name, fingerprint = metric.name, group.params.fingerprint
    for packed, cohorts in _draw_blocks(population, group, progress):
        for bits, cohort in zip(packed, cohorts, strict=True):
            yield Report(metric=name, params=fingerprint, cohort=int(cohort), bits=bits.tobytes())


def _draw_blocks(
    population: Population, group: _DeviceGroup, progress: ProgressDisplay
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint16]]]:
    """Yield blocks of reports of a group of devices: packed bits and cohorts."""
    from rappor.simulation.collection import simulate_reports

    n, seed, n_drawn = group.n_devices, group.seed, 0
    for block in simulate_reports(
        population, group.params, n_reports=n, seed=seed, block=_BLOCK_REPORTS
    ):
        yield block.packed, block.cohorts
        n_drawn += len(block.packed)
        progress("drawing reports", n_drawn, n)


def _add_suffix(out: str, suffix: str) -> str:
    """Return a path with a suffix in its name, or the path itself for an empty suffix.

    Examples: week.counts becomes week-prefix-3.counts, and reports/ becomes reports-prefix-3/.
    """
    if not suffix:
        return out
    path = Path(out)
    # Windows allows no colon in the name of a file.
    renamed = path.with_stem(f"{path.stem}-{suffix.replace(':', '-')}")
    # `Path` drops the slash, which says that the path is a folder.
    return f"{renamed}/" if _is_folder(out) else str(renamed)


def _is_folder(out: str) -> bool:
    """Return whether reports go into a folder of files: it exists, or the name ends in a slash."""
    return out.endswith(("/", os.sep)) or Path(out).is_dir()

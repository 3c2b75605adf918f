"""`rappor simulate`: a population's counts, or its reports."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rappor.base.errors import CollectorError
from rappor.base.sentence_numbers import format_count
from rappor.cli.commands import command
from rappor.cli.console import Slow, print_json
from rappor.cli.numbers import WholeNumber
from rappor.cli.options import (
    flag_field,
    json_option,
    metric_option,
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


_ROW_GROUP: Final = 1 << 16
"""Reports that are drawn and written at a time."""

_MOST_DAYS: Final = 366
"""Days at most: devices that come and go are drawn by first and last day, a group each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """How many devices there are, and how often they report."""

    reports: int | None = option_field("N", "Reports, each from a different device, such as 1e6.")
    devices: int | None = option_field(
        "N", "Devices instead of reports. With --days, the devices of each day."
    )
    reports_per_device: int | None = option_field(
        WholeNumber(1, 10**6), "Reports of each device, with one value and one permanent response."
    )
    days: int | None = option_field(
        WholeNumber(1, _MOST_DAYS),
        "Days on which each device reports once. Where the metric's interval is an epoch, "
        "the first day begins one, and a device reports on one drawn day of each epoch. Each day "
        "has its own file, with its number in the name.",
    )
    churn: float | None = option_field(
        "SHARE",
        "Share of the devices that are replaced on the next day.  [default: 0]",
        type=click.FloatRange(0, 1),
    )

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        if (self.reports is None) == (self.devices is None):
            raise click.UsageError("give either --reports or --devices")
        if self.repeated and self.devices is None:
            raise click.UsageError("give --devices where they report again, not --reports")
        if self.reports_per_device is not None and self.days is not None:
            raise click.UsageError("give either --reports-per-device or --days")
        if self.churn is not None and self.days is None:
            raise click.UsageError("--churn needs --days")

    @property
    def repeated(self) -> bool:
        """Whether devices report more than once."""
        return self.reports_per_device is not None or self.days is not None

    @property
    def n_devices(self) -> int:
        """Devices, on each day where there are several."""
        return (self.reports if self.devices is None else self.devices) or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Where what is drawn goes: a file or a folder, or a collector."""

    out: str | None = option_field(
        "FILE",
        "Counts file to write. A name that ends in .parquet gives reports, one that ends in / "
        "a folder of such files.",
    )
    to: str | None = option_field(
        "URL", "Address of a collector, which gets the reports over HTTP as from devices, today."
    )
    allow_http: bool = flag_field(
        "Send by http, without encryption, to a host name without a dot, such as a service of a "
        "container network. Whoever can read that network then sees every report. For trials."
    )

    def __post_init__(self) -> None:
        """Ask for one of both."""
        if (self.out is None) == (self.to is None):
            raise click.UsageError("give either --out or --to")
        if self.allow_http and self.to is None:
            raise click.UsageError("--allow-http needs --to")

    @property
    def as_reports(self) -> bool:
        """Whether it takes single reports, not counts."""
        return self.out is None or _is_folder(self.out) or Path(self.out).suffix == ".parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """Devices that answer for one part of the metric, or for all of it, and their file's suffix."""

    params: Params
    n_devices: int
    seed: int | None
    suffix: str


@command(
    "rappor simulate --registry metrics.toml --metric search_engine \\\n"
    "  --population population.csv --reports 1e6 --seed 1 --out week.counts",
    "rappor simulate --registry metrics.toml --metric search_engine \\\n"
    "  --population population.csv --reports 1e4 --out reports.parquet",
    "rappor simulate --registry metrics.toml --metric search_engine \\\n"
    "  --population population.csv --reports 1e5 --out reports/",
    "rappor simulate --registry metrics.toml --metric search_engine \\\n"
    "  --population population.csv --devices 1e5 --days 7 --churn 0.1 \\\n"
    "  --out day.counts",
    "rappor simulate --registry metrics.toml --metric search_engine \\\n"
    "  --population population.csv --reports 1e5 --to http://127.0.0.1:8080",
)
def simulate(
    *,
    registry_path: str = registry_option(),
    metric_name: str = metric_option(required=True),
    population_path: str = option_field(
        "FILE",
        "CSV file with the header value,weight: the values and their frequencies.",
        required=True,
    ),
    size: _Size = option_group(_Size),
    segment: tuple[str, ...] = option_field(
        "NAME=VALUE",
        "A public property that all devices have, of a metric with segments. May be repeated.",
        multiple=True,
    ),
    seed: int | None = seed_option(),
    target: _Target = option_group(_Target),
    as_json: bool = json_option(),
) -> None:
    """Simulate the counts or the reports of many devices.

    Each device draws a value of the population and sends one report, or several with the same value
    and permanent response. Counts are drawn exactly, take the same time for any number of devices,
    and include how often devices report. A .parquet file has single reports, one for each device; a
    folder has files of four million. Files and folders are written completely or not at all. A
    collector gets single reports too, in uploads of 1,000, and counts them on its own day. For a
    metric with parts, each part has its own files, with the part in the name.
    """
    from rappor.simulation.population import Population

    registry = Registry.load(registry_path)
    metric = _in_segment(registry.metric(metric_name), segment)
    population = Population.from_csv(population_path)
    if target.as_reports and size.repeated:
        raise click.UsageError(
            "a collector or a .parquet file gets one report per device: write counts"
        )
    if metric.interval == "epoch" and (size.reports_per_device or 1) > 1:
        raise click.UsageError(
            f"--reports-per-device must be 1: a device reports {metric.name} once in an epoch; "
            "give --days of several epochs"
        )
    shares = _shares(metric, size, seed)
    if target.out is None:
        _send(population, metric, shares, target, as_json=as_json)
        return
    out = target.out
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if target.as_reports:
        drawn = _write_reports(population, metric, shares, out)
    else:
        drawn = _save(_draw(population, metric, size, shares), out)
    files, reports = zip(*drawn, strict=True)
    if as_json:
        known = {"metric": metric.name, "params": metric.fingerprint, "reports": sum(reports)}
        print_json(known | {"devices": size.n_devices, "out": out, "files": files})
    else:
        told = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
        click.echo(f"{format_count(sum(reports), 'report')} of {metric.name} in {told}")


def _in_segment(metric: Metric, pairs: Iterable[str]) -> Metric:
    """Return the metric of devices with these properties, each NAME=VALUE."""
    own = {}
    for pair in pairs:
        name, _, own[name] = pair.partition("=")
        if name not in {each.name for each in metric.segments}:
            raise click.UsageError(f"--segment must name a segment of {metric.name}, got {pair!r}")
    return metric.in_segment(own) if own else metric


def _save(collections: Iterable[tuple[str, Counts]], out: str) -> Iterator[tuple[str, int]]:
    """Write each counts to a file named by its suffix, and yield its path and its reports."""
    for suffix, counts in collections:
        path = _named(out, suffix)
        counts.save(path)
        yield path, counts.n_reports


def _shares(metric: Metric, size: _Size, seed: int | None) -> Iterator[_Share]:
    """Yield the devices of each part of the metric, or all of them if it has none."""
    from rappor.simulation.part_collections import split_devices

    if not metric.parts:
        yield _Share(params=metric.params, n_devices=size.n_devices, seed=seed, suffix="")
        return
    for part, n_devices, own in split_devices(metric.parts, size.n_devices, seed):
        params = metric.part_params(part.name)
        yield _Share(params=params, n_devices=n_devices, seed=own, suffix=part.name)


def _named(out: str, suffix: str) -> str:
    """Return the path with a suffix in its name, if there is one."""
    if not suffix:
        return out
    path = Path(out)
    named = path.with_stem(f"{path.stem}-{suffix.replace(':', '-')}")
    return str(named) + "/" * _is_folder(out)


def _is_folder(out: str) -> bool:
    """Return whether reports go into a folder of files: it is there, or the name ends like one."""
    return out.endswith(("/", os.sep)) or Path(out).is_dir()


def _draw(
    population: Population, metric: Metric, size: _Size, shares: Iterable[_Share]
) -> Iterator[tuple[str, Counts]]:
    """Draw the counts of each share, where there are days one of each day."""
    from rappor.simulation.collection import simulate_counts
    from rappor.simulation.repeated_reports import simulate_days, simulate_repeated

    for share in shares:
        if size.days is not None:
            days = simulate_days(
                population,
                share.params,
                n_devices=share.n_devices,
                n_days=size.days,
                churn=size.churn or 0.0,
                once_in=LONGEST_EPOCH_DAYS[metric.epoch] if metric.interval == "epoch" else None,
                seed=share.seed,
                metric=metric.name,
            )
            width = len(str(size.days))
            for day, counts in enumerate(days, start=1):
                yield "-".join(filter(None, (share.suffix, f"{day:0{width}}"))), counts
        elif size.reports_per_device is not None:
            devices = {size.reports_per_device: share.n_devices}
            drawn = simulate_repeated(
                population, share.params, devices=devices, seed=share.seed, metric=metric.name
            )
            yield share.suffix, drawn.counts
        else:
            counts = simulate_counts(
                population,
                share.params,
                n_reports=share.n_devices,
                seed=share.seed,
                metric=metric.name,
            )
            yield share.suffix, counts


def _write_reports(
    population: Population, metric: Metric, shares: Iterable[_Share], out: str
) -> Iterator[tuple[str, int]]:
    """Write each share's reports, and yield the path and their number."""
    from rappor.engines import parquet

    write = parquet.write_parquet_folder if _is_folder(out) else parquet.write_parquet
    day = datetime.datetime.now(datetime.UTC).date()
    for share in shares:
        path = _named(out, share.suffix)
        with Slow() as slow:
            blocks = _blocks(population, share, slow)
            write(path, blocks, params=share.params, metric=metric.name, day=day)
        yield path, share.n_devices


def _send(
    population: Population,
    metric: Metric,
    shares: Iterable[_Share],
    target: _Target,
    *,
    as_json: bool,
) -> None:
    """Send each share's reports, and say what became of them."""
    from rappor.remote.bulk_upload import send_reports
    from rappor.remote.http_exchange import HttpExchange

    statuses: Counter[str] = Counter()
    with Slow() as slow:
        transport = HttpExchange(str(target.to), allow_http=target.allow_http)
        for share in shares:
            reports = _reports(population, metric, share, slow)
            statuses += send_reports(transport, reports)
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


def _reports(population: Population, metric: Metric, share: _Share, slow: Slow) -> Iterator[Report]:
    """Yield the reports of a share's devices."""
    from rappor.protocol.wire import Report

    name, fingerprint = metric.name, share.params.fingerprint
    for packed, cohorts in _blocks(population, share, slow):
        for bits, cohort in zip(packed, cohorts, strict=True):
            yield Report(metric=name, params=fingerprint, cohort=int(cohort), bits=bits.tobytes())


def _blocks(
    population: Population, share: _Share, slow: Slow
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint16]]]:
    """Draw the reports of a share's devices, and show how far they are."""
    from rappor.simulation.collection import simulate_reports

    n, seed, done = share.n_devices, share.seed, 0
    for block in simulate_reports(
        population, share.params, n_reports=n, seed=seed, block=_ROW_GROUP
    ):
        yield block.packed, block.cohorts
        done += len(block.packed)
        slow("drawing reports", done, n)

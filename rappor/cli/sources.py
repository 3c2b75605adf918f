"""What a command line names: counts, a registry, candidates; a class for each case."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.count_files import (
    add_by_epoch,
    check_counts,
    check_one_epoch,
    check_pair,
    days_of,
    find_metric,
    is_pair,
    read_counts,
)
from rappor.cli.options import (
    asked,
    counts_argument,
    given,
    metric_option,
    registry_option,
)
from rappor.ground.errors import DecodeError
from rappor.ground.files import read_text, sha256_of
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.counts import Counts
    from rappor.decoding.report import InputFile
    from rappor.google.effective_noise import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Counts of one metric, and what their strings may be."""

    paths: tuple[str, ...] = given(counts_argument)
    registry_path: str | None = given(registry_option(required=False))
    metric_name: str | None = given(metric_option())
    candidates_path: str | None = asked(
        "FILE",
        "Candidate strings, one per line, plain or gzip; - is standard input. Default: those of "
        "the metric.",
        type=click.Path(allow_dash=True),
    )

    def read(self) -> list[Counts]:
        """Read the counts of every file."""
        counts = [each for path in self.paths for each in read_counts(path)]
        if not counts:
            raise DecodeError("counts must have at least 1 report, got 0")
        return counts

    def by_epoch(self, counts: list[Counts]) -> list[Counts]:
        """Add the counts where the metric says that no device reported twice."""
        metric = find_metric(self.registry_path, self.metric_name, counts)
        return add_by_epoch(self.paths, metric, counts)

    def candidates(self, *samples: list[Counts]) -> Candidates | None:
        """Check the counts of each sample against the registry, and read the candidates.

        None where the encoding answers for every bit.
        """
        counts = [each for sample in samples for each in sample]
        metric = find_metric(self.registry_path, self.metric_name, counts)
        if metric is not None:
            for sample in samples:
                check_counts(sample, metric)
        params = counts[0].params if metric is None else metric.params
        if encoding_of(params).hashed:
            return self._candidates(params, metric)
        if self.candidates_path is not None:
            raise click.UsageError(
                f"--candidates must be omitted: encoding {params.encoding} is answered in full"
            )
        return None

    def is_complete(self, counts: list[Counts]) -> bool:
        """Return whether the registry says that every value is in one of the answers."""
        metric = find_metric(self.registry_path, self.metric_name, counts)
        return metric is not None and metric.complete

    def files(self) -> tuple[InputFile, ...]:
        """Return the files that were read, each with its hash; a pipe, read already, has none."""
        from rappor.decoding.report import InputFile

        counts = (
            InputFile(name=path, sha256=sha256_of(path), days=" to ".join(map(str, days_of(path))))
            for path in self.paths
        )
        others = (
            InputFile(name=path, sha256=sha256_of(path))
            for path in self._others()
            if path is not None and path != "-" and Path(path).is_file()
        )
        return (*counts, *others)

    def _others(self) -> tuple[str | None, ...]:
        """Return the files that are read beside the counts."""
        return self.registry_path, self.candidates_path

    def _candidates(self, params: Params, metric: Metric | None) -> Candidates:
        """Read the candidates that are named, or the metric's own."""
        from rappor.candidates.candidates import Candidates
        from rappor.candidates.google_hashing import LAYOUT
        from rappor.google.files import read_candidates

        if self.candidates_path == "-":
            with click.open_file("-", "rb") as stream:
                listed = Candidates.from_lines(stream, normalize=params.normalize)
            return _checked(listed, "standard input", params)
        path = self.candidates_path or own_candidates(self.registry_path, metric)
        if path is None:
            reason = (
                ", or --registry, whose metric names such a file"
                if metric is None
                else ": the metric names none"
            )
            raise click.UsageError(f"give --candidates, a file of strings, one a line{reason}")
        if params.layout == LAYOUT:
            return read_candidates(path)
        return _checked(Candidates.from_file(path, normalize=params.normalize), path, params)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleSource(Source):
    """Counts of google/rappor, with their parameters, and candidates or a map; or ours."""

    file_format: str = asked(
        ["rappor", "google"],
        "Format of COUNTS; google is the counts.csv of google/rappor, with --params.",
        default="rappor",
        flags="--format",
    )
    params_path: str | None = asked("FILE", "params.csv of google/rappor.")
    map_path: str | None = asked("FILE", "map.csv of google/rappor, instead of --candidates.")
    client: Client | None = asked(  # noqa: RUF009  # a field
        ["python", "cpp", "java"],
        "Client of google/rappor that sent the reports; each rounds f in its own way.",
    )

    def source(self) -> Source:
        """Return the files as the case that they are."""
        if self.file_format == "google":
            return self
        if self.params_path or self.map_path or self.client:
            raise click.UsageError("--params, --map and --client go with --format google")
        return Source(**{each.name: getattr(self, each.name) for each in fields(Source)})

    def read(self) -> list[Counts]:
        """Read the counts of every file."""
        from rappor.google import files

        if self.params_path is None or (self.candidates_path is None) == (self.map_path is None):
            raise click.UsageError(
                "--format google needs --params and either --candidates or --map"
            )
        params = files.read_params(self.params_path, client=self.client)
        return [files.read_counts(path, params) for path in self.paths]

    def by_epoch(self, counts: list[Counts]) -> list[Counts]:
        """Return the counts: no metric is known."""
        return counts

    def is_complete(self, counts: list[Counts]) -> bool:  # noqa: ARG002  # of strings there is no end
        """Return False: all counts are of strings."""
        return False

    def candidates(self, *samples: list[Counts]) -> Candidates:
        """Read the candidates, or the map."""
        from rappor.google import files

        if self.map_path is not None:
            return files.read_map(self.map_path, samples[0][0].params)
        assert self.candidates_path is not None
        return files.read_candidates(self.candidates_path)

    def _others(self) -> tuple[str | None, ...]:
        return self.registry_path, self.candidates_path, self.params_path, self.map_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSource:
    """Counts of every part of a metric in one epoch, or of categories and what is in `other`."""

    paths: tuple[str, ...] = given(counts_argument)
    registry_path: str | None = given(registry_option(required=False))
    metric_name: str | None = given(metric_option())
    known_path: str | None = asked(
        "FILE", "Known strings to test as well, one per line. Default: the metric's candidates."
    )

    def read(self) -> list[Counts]:
        """Read the counts of all files."""
        return [each for path in self.paths for each in read_counts(path)]

    def known(self, counts: list[Counts]) -> list[str]:
        """Check the counts against the registry; read the known strings, or the metric's own."""
        find = check_pair if is_pair(counts) else _checked_metric
        metric = find(self.registry_path, self.metric_name, counts)
        if metric is not None:
            check_one_epoch(self.paths, metric)
        path = self.known_path or own_candidates(self.registry_path, metric)
        return [] if path is None else read_lines(path)


def _checked(listed: Candidates, path: str, params: Params) -> Candidates:
    """Refuse a file without candidates; add the empty string where devices send it."""
    if listed.is_held and len(listed) == 0:
        raise DecodeError(f"{path}: it has no candidates: write one string per line")
    return listed.with_empty() if params.other else listed


def _checked_metric(
    registry_path: str | None, metric_name: str | None, counts: list[Counts]
) -> Metric | None:
    metric = find_metric(registry_path, metric_name, counts)
    if metric is not None:
        check_counts(counts, metric)
    return metric


def own_candidates(registry_path: str | None, metric: Metric | None) -> str | None:
    """Return the path of the candidates that a metric names, which is beside the registry."""
    if registry_path is None or metric is None or metric.candidates is None:
        return None
    return str(Path(registry_path).parent / metric.candidates)


def read_lines(path: str) -> list[str]:
    """Read one string a line; blank lines are skipped."""
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]

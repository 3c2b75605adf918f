"""Arguments of commands that read counts: files of counts, a registry, and candidates.

Each class is a dataclass of arguments and options (`rappor.cli.options.option_group`):

    class          commands                    input
    CountInputs    decode                      files of counts, and candidates of a file or a metric
    GoogleInputs   decode --format google      files of google/rappor, with parameters and maps
    PartInputs     discover                    counts of all parts of a metric in one epoch

The modules of `rappor associate`, `compare`, `publish` and `trend` have further subclasses of
`CountInputs`.

The classes choose the files that the command line names, and raise usage errors for options that
contradict each other. The library reads and checks the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from rappor.base.atomic_files import hash_file, read_text
from rappor.base.errors import DecodeError, FileError
from rappor.base.text_lines import split_filled_lines
from rappor.cli.options import argument_field, metric_option, option_field, registry_option
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.counts.counts import Counts
    from rappor.decoding.estimates_report import InputFile
    from rappor.google.effective_noise import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class CountInputs:
    """Options for files of counts, the registry that contains their metric, and the candidates."""

    CANDIDATES_OPTION: ClassVar[str] = "--candidates"
    """Name of the option whose file contains candidates. Messages name the option."""

    paths: tuple[str, ...] = argument_field(
        nargs=-1, required=True, type=click.Path(), metavar="COUNTS"
    )
    registry_path: str | None = registry_option(required=False)
    metric_name: str | None = metric_option()
    candidates_path: str | None = option_field(
        "FILE",
        "Candidate strings whose shares are estimated, one per line, plain or gzip; - is standard "
        "input. Default: the candidates of the metric.",
        type=click.Path(allow_dash=True),
    )

    def __post_init__(self) -> None:
        """Refuse a file that is passed twice, because its reports would count twice."""
        if len({Path(path).resolve() for path in self.paths}) < len(self.paths):
            raise click.UsageError("COUNTS must be different files")

    def read_counts(self) -> list[Counts]:
        """Read the counts of all files. Raise DecodeError if no file contains counts."""
        counts = [collection for path in self.paths for collection in self.read_file(path)]
        if not counts:
            raise DecodeError("counts must have at least 1 report, got 0")
        return counts

    def read_file(self, path: str) -> list[Counts]:
        """Read the counts of one file. A CSV table needs --registry and --metric."""
        from rappor.counts.input_files import read_counts

        return read_counts(path, self.find_named_metric())

    def find_named_metric(self) -> Metric | None:
        """Return the metric of --metric; None without --registry or without --metric."""
        if self.registry_path is None or self.metric_name is None:
            return None
        return Registry.load(self.registry_path).metric(self.metric_name)

    def find_metric(self, counts: Sequence[Counts]) -> Metric | None:
        """Return the metric of --metric, or the metric that the counts name.

        Returns None without a registry.

        Raises
        ------
        MetricError
            The counts belong to several metrics, or the registry lacks the metric.
        """
        from rappor.counts.input_files import find_metric_name

        if self.registry_path is None:
            if self.metric_name is not None:
                raise click.UsageError("--metric needs --registry")
            # The call refuses counts of several metrics. The name itself is not needed.
            find_metric_name(counts)
            return None
        registry = Registry.load(self.registry_path)
        name = self.metric_name or find_metric_name(counts)
        if not name:
            raise click.UsageError("give --metric: the files do not name their metric")
        return registry.metric(name)

    def add_counts_of_epoch(self, counts: list[Counts]) -> list[Counts]:
        """Add the counts of one epoch, for a metric whose devices report once in an epoch.

        The errors of a sum depend on how many reports each device has sent. Usually a decode has to
        estimate this number. Here no device has sent two reports, so the decode gets one sum in
        which each report counts as a device. Counts of a metric with a daily or weekly interval,
        and counts of several epochs, are returned unchanged.
        """
        from rappor.counts.input_files import list_epochs
        from rappor.estimator.device_assumptions import add_collections_of_epoch

        metric = self.find_metric(counts)
        epochs = [] if metric is None else list_epochs(self.paths, metric)
        return add_collections_of_epoch(counts, metric, epochs)

    def read_candidates(self, *samples: list[Counts]) -> Candidates | None:
        """Check the counts of each sample against the registry, and read the candidates.

        Returns None for an encoding with one bit for each category, because the categories are the
        candidates.
        """
        from rappor.counts.input_files import check_counts

        counts = [collection for sample in samples for collection in sample]
        metric = self.find_metric(counts)
        if metric is not None:
            for sample in samples:
                check_counts(sample, metric)
        params = counts[0].params if metric is None else metric.params
        if get_encoding(params).is_hashed:
            return self._read_candidates(params, metric)
        if self.candidates_path is not None:
            raise click.UsageError(
                f"{self.CANDIDATES_OPTION} must be omitted: the candidates of encoding "
                f"{params.encoding} are its categories"
            )
        return None

    def find_listed_strings(self, counts: Sequence[Counts]) -> tuple[str, ...]:
        """Return the strings in the list `candidates` of the metric's entry, if it has a list.

        The result is empty if the entry names a file, or has no candidates.
        """
        metric = self.find_metric(counts)
        return () if metric is None else metric.listed

    def is_ranked(self, counts: Sequence[Counts]) -> bool:
        """Return whether the registry states that the order of the candidates is prior knowledge.

        The statement is about the candidates of the entry. With --candidates, the result is False.
        """
        metric = self.find_metric(counts)
        return metric is not None and metric.ranked and self.candidates_path is None

    def is_complete(self, counts: Sequence[Counts]) -> bool:
        """Return whether the registry states that the categories contain every value."""
        metric = self.find_metric(counts)
        return metric is not None and metric.complete

    def describe_days(self) -> str:
        """Return the first and the last day of all files; empty if a file has no days."""
        from rappor.counts.input_files import read_days
        from rappor.counts.released_counts import Period

        ranges = [read_days(path) for path in self.paths]
        if not all(ranges):
            return ""
        days = [day for first_and_last in ranges for day in first_and_last]
        # A request without a first or last day has the first or last possible date. The name of a
        # period then has words in place of the date.
        return Period(first=min(days), last=max(days), collections=()).name.replace("/", " to ")

    def list_input_files(self) -> tuple[InputFile, ...]:
        """Return the name and the hash of each file that was read.

        Standard input and pipes are left out, because they cannot be read again for a hash.
        """
        from rappor.counts.input_files import read_days
        from rappor.decoding.estimates_report import InputFile

        # With the hashes, a person who reads the report can check which files were decoded.
        counts = (
            InputFile(
                name=path, sha256=hash_file(path), days=" to ".join(map(str, read_days(path)))
            )
            for path in self.paths
        )
        other_files = (
            InputFile(name=path, sha256=hash_file(path))
            for path in self._list_other_paths()
            if path is not None and path != "-" and Path(path).is_file()
        )
        return (*counts, *other_files)

    def _list_other_paths(self) -> tuple[str | None, ...]:
        """Return the paths of the files that are read in addition to the counts."""
        return self.registry_path, self.candidates_path

    def _read_candidates(self, params: Params, metric: Metric | None) -> Candidates:
        """Return the candidates of the entry and of --candidates together.

        The strings that the entry lists come first, and the strings of --candidates follow. If the
        entry lists no strings, the candidates are read from --candidates or, without this option,
        from the file that the entry names.
        """
        from rappor.candidates.listed_candidates import add_to_list

        if metric is None or not metric.listed:
            return self._read_candidates_file(params, metric)
        further = None
        if self.candidates_path is not None:
            further = self._read_candidates_file(params, metric)
        return add_to_list(metric.listed, further, params)

    def _read_candidates_file(self, params: Params, metric: Metric | None) -> Candidates:
        """Read the file of --candidates, or the files that the metric's entry names."""
        from rappor.candidates.candidates import Candidates
        from rappor.candidates.entry_candidates import read_entry_candidates
        from rappor.candidates.google_hashing import GOOGLE_LAYOUT
        from rappor.google.files import read_candidates

        if self.candidates_path == "-":
            with click.open_file("-", "rb") as stream:
                candidates = Candidates.from_lines(
                    stream, normalize=params.normalize, field_names=params.field_names
                )
            return _check_not_empty(candidates, "standard input")
        if (path := self.candidates_path) is not None:
            # Case: counts that were converted from google/rappor. Its tools remove the white space
            # at both ends of each line, and an empty line is the empty string. `from_file` does
            # neither.
            if params.layout == GOOGLE_LAYOUT:
                return read_candidates(path)
            candidates = Candidates.from_file(
                path, normalize=params.normalize, field_names=params.field_names
            )
            return _check_not_empty(candidates, path)
        if self.registry_path is None or metric is None or metric.candidates is None:
            reason = ": the metric names none"
            if metric is None:
                reason = ", or --registry, whose metric names such a file"
            raise click.UsageError(
                f"give {self.CANDIDATES_OPTION}, a file of strings, one a line{reason}"
            )
        folder = Path(self.registry_path).parent
        candidates = read_entry_candidates(metric.candidates, folder, params)
        return _check_not_empty(candidates, candidates.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleInputs(CountInputs):
    """Options of `rappor decode` for counts of google/rappor, in addition to `CountInputs`.

    The methods read files of google/rappor. `select_format` returns a `CountInputs` for files in
    our own format. A map of google/rappor is a CSV file with the bits of each candidate in each
    cohort.
    """

    file_format: str = option_field(
        ["rappor", "google"],
        "Format of COUNTS. google stands for the counts.csv of google/rappor, with --params.",
        default="rappor",
        flags="--format",
    )
    params_path: str | None = option_field(
        "FILE", "The params.csv of google/rappor, with --format google."
    )
    map_path: str | None = option_field(
        "FILE",
        "The map.csv of google/rappor with the bits of each candidate, instead of --candidates.",
    )
    client: Client | None = option_field(  # noqa: RUF009  # returns a dataclass field
        ["python", "cpp", "java"],
        "Client of google/rappor that sent the reports. Each rounds the probability f in its own "
        "way.",
    )

    def select_format(self) -> CountInputs:
        """Return the inputs in the format that --format names."""
        if self.file_format == "google":
            # The files of google/rappor contain their parameters and no name of a metric, so the
            # entry of a registry would have no effect.
            if self.registry_path is not None or self.metric_name is not None:
                raise click.UsageError(
                    "--registry and --metric must be omitted with --format google"
                )
            return self
        if self.params_path or self.map_path or self.client:
            raise click.UsageError("--params, --map and --client go with --format google")
        values = {field.name: getattr(self, field.name) for field in fields(CountInputs)}
        return CountInputs(**values)

    def read_counts(self) -> list[Counts]:
        """Read the counts of every file."""
        from rappor.google import files

        if self.params_path is None or (self.candidates_path is None) == (self.map_path is None):
            raise click.UsageError(
                "--format google needs --params and either --candidates or --map"
            )
        params = files.read_params(self.params_path, client=self.client)
        return [files.read_counts(path, params) for path in self.paths]

    def find_metric(self, counts: Sequence[Counts]) -> None:
        """Return None, because files of google/rappor contain no name of a metric."""

    def read_candidates(self, *samples: list[Counts]) -> Candidates:
        """Read the strings of --candidates, or the map, which contains their bits."""
        from rappor.google import files

        if self.map_path is not None:
            return files.read_map(self.map_path, samples[0][0].params)
        assert self.candidates_path is not None
        return files.read_candidates(self.candidates_path)

    def _list_other_paths(self) -> tuple[str | None, ...]:
        """Return the paths of the files that are read in addition to the counts."""
        return self.registry_path, self.candidates_path, self.params_path, self.map_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInputs(CountInputs):
    """Options for the counts of all parts of a metric in one epoch.

    A part is a piece of a string, such as its first three letters, that a device reports.
    """

    CANDIDATES_OPTION: ClassVar[str] = "--known"

    # The same field as in `CountInputs`, with another flag. A discovery needs no candidates. These
    # strings are tested in addition to the strings that it finds.
    candidates_path: str | None = option_field(
        "FILE",
        "Known strings, which are tested as well, one per line, plain or gzip. Default: the "
        "metric's candidates.",
        flags="--known",
    )

    def read_known(self, counts: list[Counts]) -> Candidates:
        """Check the counts of the parts, and read the strings of --known or of the metric."""
        from rappor.candidates.candidates import Candidates
        from rappor.counts.input_files import check_counts, list_epochs

        metric = self.find_metric(counts)
        if metric is not None:
            check_counts(counts, metric)
            # A device may report another part of another value in the next epoch. The prefixes of
            # one epoch and the whole strings of another epoch would not belong together.
            if len(epochs := list_epochs(self.paths, metric)) > 1:
                raise DecodeError(
                    f"counts must be of one epoch of {metric.name}, got days of "
                    f"{' and '.join(epochs)}: ask the collector for the days of one"
                )
        path = self.candidates_path or self._find_candidates_path_of_entry(metric)
        return Candidates.from_list([]) if path is None else Candidates.from_file(path)

    def _find_candidates_path_of_entry(self, metric: Metric | None) -> str | None:
        """Return the path of the file of candidates that the metric's entry names.

        The name is relative to the folder of the registry. Returns None if the entry names no file.
        Candidates that the entry lists itself are not in a file (`find_listed_strings`).
        """
        if self.registry_path is None or metric is None or not isinstance(metric.candidates, str):
            return None
        return str(Path(self.registry_path).parent / metric.candidates)


def read_lines(path: str) -> list[str]:
    """Read one string from each line. Blank lines are skipped."""
    return split_filled_lines(read_text(path))


def _check_not_empty(candidates: Candidates, path: str) -> Candidates:
    """Return the candidates, or raise FileError for a file without a candidate."""
    # Candidates that are not in memory are streamed from a file of more than 64 MB. Such a file has
    # candidates, and counting them would take a pass over the file.
    if candidates.is_in_memory and len(candidates) == 0:
        raise FileError(path, "it has no candidates: write one string per line")
    return candidates

"""The files that `rappor decode` reads: counts, a registry, candidates, those of google/rappor."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rappor.errors import DecodeError, FileError, MetricError
from rappor.files import read_text, sha256_of
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.protocol.segments import Segment
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.candidates.stream import CandidateStream
    from rappor.counts.counts import Counts
    from rappor.decoding.report import InputFile
    from rappor.google.effective_noise import Client

_PARQUET: Final = b"PAR1"
_GZIP: Final = b"\x1f\x8b"
_STREAMED_FROM: Final = 1 << 26
"""Bytes of a file of candidates from which on it is streamed: some five million, whose texts alone
would take 500 MB."""

_LONGEST_LINE: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the command line says about the counts and what their strings may be."""

    paths: tuple[str, ...]
    registry_path: str | None
    metric_name: str | None
    candidates_path: str | None
    stream: bool = False
    file_format: str = "rappor"
    params_path: str | None = None
    map_path: str | None = None
    client: Client | None = None

    def load(self) -> tuple[list[Counts], Candidates | CandidateStream | None]:
        """Read the counts of every file, and the candidates where they are needed."""
        counts = self.read()
        return counts, self.candidates(counts)

    def read(self) -> list[Counts]:
        """Read the counts of every file."""
        if self.file_format == "google":
            return self._read_google()
        if self.params_path or self.map_path or self.client:
            raise click.UsageError("--params, --map and --client go with --format google")
        counts = [each for path in self.paths for each in read_counts(path)]
        if not counts:
            raise DecodeError("counts must hold at least 1 report, got 0")
        return counts

    def candidates(self, counts: list[Counts]) -> Candidates | CandidateStream | None:
        """Read the candidates where they are needed."""
        if self.file_format == "google":
            return self._google_candidates(counts[0].params)
        return self.candidates_for(counts)

    def known_of(self, pair: list[Counts]) -> list[str]:
        """Check counts of categories and of what is in their `other`; read its candidates."""
        texts = check_pair(self.registry_path, self.metric_name, pair)
        if texts is not None:
            check_one_epoch(self.paths, texts)
        path = self.candidates_path
        if path is None and texts is not None and texts.candidates and self.registry_path:
            path = str(Path(self.registry_path).parent / texts.candidates)
        return [] if path is None else read_lines(path)

    def load_segments(self) -> tuple[list[Counts], Candidates | CandidateStream | None]:
        """Read the counts of every file; each segment must hold the metric's minimum."""
        counts = [each for path in self.paths for each in read_counts(path) if each.n_reports]
        if not counts:
            raise DecodeError("counts must hold at least 1 report, got 0")
        segments: dict[Segment, list[Counts]] = {}
        for each in counts:
            segments.setdefault(each.params.segment, []).append(each)
        return counts, self.candidates_for(*segments.values())

    def candidates_for(self, *samples: list[Counts]) -> Candidates | CandidateStream | None:
        """Check the counts of each sample against the registry, and read the candidates."""
        counts = [each for sample in samples for each in sample]
        metric = find_metric(self.registry_path, self.metric_name, counts)
        if metric is None:
            return self._candidates(counts[0].params, None)
        for sample in samples:
            check_counts(sample, metric)
        return self._candidates(metric.params, metric.candidates)

    def files(self) -> tuple[InputFile, ...]:
        """Return the files that were read, each with its hash; standard input has none."""
        from rappor.decoding.report import InputFile

        others = (self.registry_path, self.candidates_path, self.params_path, self.map_path)
        return (
            *(
                InputFile(name=path, sha256=sha256_of(path), days=_days(path))
                for path in self.paths
            ),
            *(
                InputFile(name=path, sha256=sha256_of(path))
                for path in others
                if path is not None and path != "-"
            ),
        )

    def _candidates(self, params: Params, own: str | None) -> Candidates | CandidateStream | None:
        """Read the candidates that are named, or the metric's own, beside the registry."""
        from rappor.candidates.candidates import Candidates
        from rappor.candidates.google_hashing import LAYOUT
        from rappor.candidates.stream import CandidateStream
        from rappor.google.files import read_candidates

        path = self.candidates_path
        if not encoding_of(params).hashed:
            if path is not None:
                raise click.UsageError(
                    f"--candidates must be left out: encoding {params.encoding} is answered in full"
                )
            return None
        if path == "-":
            if self.stream:
                raise click.UsageError("--stream needs a file: standard input is read only once")
            with click.open_file("-", "rb") as stream:
                listed = Candidates.from_lines(stream, normalize=params.normalize)
                return listed.with_empty() if params.other else listed
        if path is None:
            if self.registry_path is None:
                raise click.UsageError(
                    "give --candidates, a file of strings, one a line, or --registry, whose metric "
                    "names such a file"
                )
            if own is None:
                raise click.UsageError(
                    "give --candidates, a file of strings, one a line: the metric names none"
                )
            path = str(Path(self.registry_path).parent / own)
        if params.layout == LAYOUT:
            return read_candidates(path)
        if self.stream or _is_long(path):
            return CandidateStream.from_file(path, normalize=params.normalize)
        listed = Candidates.from_file(path, normalize=params.normalize)
        return listed.with_empty() if params.other else listed

    def _read_google(self) -> list[Counts]:
        """Read the counts of google/rappor."""
        from rappor.google import files

        if self.params_path is None or (self.candidates_path is None) == (self.map_path is None):
            raise click.UsageError(
                "--format google needs --params and either --candidates or --map"
            )
        params = files.read_params(self.params_path, client=self.client)
        return [files.read_counts(path, params) for path in self.paths]

    def _google_candidates(self, params: Params) -> Candidates:
        """Read the candidates of google/rappor, or its map."""
        from rappor.google import files

        if self.map_path is not None:
            return files.read_map(self.map_path, params)
        assert self.candidates_path is not None
        return files.read_candidates(self.candidates_path)


def find_metric(
    registry_path: str | None, metric_name: str | None, counts: list[Counts]
) -> Metric | None:
    """Return the metric of a registry, by its name or by the one that the counts have."""
    if registry_path is None:
        if metric_name is not None:
            raise click.UsageError("--metric needs --registry")
        _only_name(counts)
        return None
    registry = Registry.load(registry_path)
    name = metric_name or _only_name(counts)
    if not name:
        raise click.UsageError("give --metric: the files do not name their metric")
    return registry.metric(name)


def is_pair(counts: list[Counts]) -> bool:
    """Tell whether some counts are of categories with `other`, and others of what is in it."""
    return len({encoding_of(each.params).hashed for each in counts if each.params.other}) == 2


def check_pair(
    registry_path: str | None, metric_name: str | None, counts: list[Counts]
) -> Metric | None:
    """Check the counts of such a pair against the registry; return the metric of the texts."""
    if registry_path is None:
        return None
    registry = Registry.load(registry_path)
    named = sorted({each.metric for each in counts} - {""})
    names = registry.together(metric_name or (named[0] if named else ""))
    if len(names) < 2 or not set(named) <= set(names):
        raise MetricError(f"counts must be of a metric with other, got {', '.join(named)}")
    metrics = [registry.metric(name) for name in names]
    for metric in metrics:
        hashed = encoding_of(metric.params).hashed
        check_counts([c for c in counts if encoding_of(c.params).hashed == hashed], metric)
    return metrics[1]


def check_one_epoch(paths: Sequence[str], metric: Metric) -> None:
    """Refuse days of several epochs: in each of them a device answers for another part."""
    epochs = sorted({metric.epoch_at(day) for path in paths for day in days_of(path)})
    if len(epochs) > 1:
        raise DecodeError(
            f"counts must be of one epoch of {metric.name}, got days of {' and '.join(epochs)}: "
            "ask the collector for the days of one"
        )


def read_lines(path: str) -> list[str]:
    """Read one string a line; blank lines are skipped."""
    lines = read_text(path).split("\n")
    return [line.removesuffix("\r") for line in lines if line.strip()]


def _is_long(path: str) -> bool:
    """Tell whether a file of candidates is better not held: a large one, or a packed one."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(_GZIP)) == _GZIP or Path(path).stat().st_size >= _STREAMED_FROM
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None


def read_counts(path: str) -> list[Counts]:
    """Read one file of counts, or a collector's answer of several."""
    from rappor.counts.counts import Counts

    first_line = _first_line(path)
    if first_line.startswith(_PARQUET) or _is_upload(first_line):
        raise FileError(
            path,
            "it holds reports, not counts; add them up first: "
            f"rappor aggregate {path} --registry FILE --metric NAME --out FILE",
        )
    return Counts.load_all(path)


def _days(path: str) -> str:
    """Write the days that a collector's answer is of; empty for every other file."""
    return " to ".join(map(str, days_of(path)))


def days_of(path: str) -> tuple[datetime.date, ...]:
    """Return the first and the last day of a collector's answer; nothing for other files."""
    with Path(path).open("rb") as file:
        if file.read(1) != b"{":
            return ()
        document = json.loads(b"{" + file.read())
    first, last = document.get("from"), document.get("to")
    if not (first and last):
        return ()
    return datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)


def _first_line(path: str) -> bytes:
    """Return the first line, or as much of it as tells the kind of file."""
    try:
        with Path(path).open("rb") as file:
            return file.readline(_LONGEST_LINE)
    except OSError as error:
        raise FileError(path, error.strerror or "unreadable") from None


def _is_upload(line: bytes) -> bool:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and {"id", "reports"} <= document.keys()


def _only_name(counts: list[Counts]) -> str:
    """Return the one metric that the counts name; empty if they name none."""
    names = sorted({each.metric for each in counts} - {""})
    if len(names) > 1:
        raise MetricError(f"counts must be of one metric, got {', '.join(names)}")
    return names[0] if names else ""


def check_counts(counts: list[Counts], metric: Metric) -> None:
    """Refuse counts of another metric or encoding, and too few reports."""
    for each in counts:
        if each.metric not in ("", metric.name):
            raise MetricError(f"counts must be of {metric.name}, got {each.metric}")
        if not encoding_of(metric.params).takes_values_of(each.params):
            raise MetricError(
                f"counts must have encoding {metric.params.encoding}, got {each.params.encoding}"
            )
    n_reports = sum(each.n_reports for each in counts)
    if n_reports < metric.min_reports:
        raise DecodeError(
            f"counts must hold at least {metric.min_reports:,} reports, the minimum of "
            f"{metric.name}, got {n_reports:,}"
        )

"""Sources of the candidates of a query: the registry, an uploaded list, or the query itself.

| source             | candidates are in                                 | bytes for the key |
|--------------------|---------------------------------------------------|-------------------|
| `CandidatesFile`   | files that the entry of the metric names          | the whole files   |
| `InlineCandidates` | the entry of the metric, or the body of a request | the strings       |
| `UploadedList`     | a list that an analyst has uploaded               | the list's digest |

A source is pickled with its query, and the worker process reads the candidates. Each source has two
methods:

- `read_contents` returns bytes that change with the candidates, for the key of the query
  (`query.py`). The bytes are empty if the source cannot be read. The query then runs, and fails
  with the reason.
- `read` returns the candidates in the spelling of the metric's parameters (normalizer and fields),
  or raises DecodeError or NotFoundError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rappor.base.errors import DecodeError, FileError, ParamsError
from rappor.candidates.candidates import Candidates
from rappor.candidates.entry_candidates import list_files, read_entry_candidates
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor_server.base.errors import NotFoundError
from rappor_server.queries.candidate_lists import CandidateLists


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatesFile:
    """The files of candidates that a metric's entry names: one file, or a table of fields.

    Attributes
    ----------
    metric : name of the metric
    candidates : the value of the key `candidates` of the entry: the name of a file, or a list or
        the name of a file for each field of a tuple. Messages show these names.
    folder : folder of the registry, which messages do not show
    is_ranked : whether the entry says that the order of the candidates is prior knowledge
    """

    metric: str
    candidates: str | Mapping[str, str | tuple[str, ...]]
    folder: Path
    is_ranked: bool = False

    def read_contents(self) -> bytes:
        """Return the value of the key, and the bytes of the files."""
        try:
            contents = [(self.folder / name).read_bytes() for name in list_files(self.candidates)]
        except OSError:
            return b""
        # Without the lengths, bytes could move from one file to the next without a new key.
        return repr((self.candidates, [*map(len, contents)])).encode() + b"".join(contents)

    def read(self, params: Params) -> Candidates:
        """Return the candidates of the files. An error shows a name, and not the folder."""
        try:
            return read_entry_candidates(self.candidates, self.folder, params)
        except FileError as error:
            name = Path(error.path).relative_to(self.folder)
            file = f"{self.metric}: its candidates file {name}"
            raise _describe_unreadable(file, error) from None
        except ParamsError as error:
            raise DecodeError(f"{self.metric}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineCandidates:
    """Candidates in a metric's entry of the registry, or in the body of a request.

    Attributes
    ----------
    strings : the candidates
    is_ranked : whether the entry says that their order is prior knowledge
    """

    strings: tuple[str, ...]
    is_ranked: bool = False

    def read_contents(self) -> bytes:
        """Return the strings, one a line."""
        return "\n".join(self.strings).encode()

    def read(self, params: Params) -> Candidates:
        """Return the candidates."""
        return Candidates.from_list(
            self.strings, normalize=params.normalize, field_names=params.field_names
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedList:
    """A list that an analyst uploaded for a metric.

    Attributes
    ----------
    metric : name of the metric
    digest : SHA-256 of the list, in hexadecimal digits
    path : file of the list, or None if the list was deleted
    """

    metric: str
    digest: str
    path: Path | None = field(repr=False)
    is_ranked: bool = field(default=False, init=False)  # nobody states where its order comes from

    def read_contents(self) -> bytes:
        """Return the digest of the list, because a list never changes."""
        return self.digest.encode()

    def read(self, params: Params) -> Candidates:
        """Return the candidates of the list."""
        if self.path is None:
            raise NotFoundError(f"{self.metric} has no list {self.digest[:12]}: upload it again")
        path = self.path
        if not path.exists():
            # A colleague has uploaded the same text again while the query waited for a process. The
            # name of a file contains the time of the upload, so the list has another file now.
            path = next(path.parent.glob(f"{self.digest}.*"), path)
        try:
            return Candidates.from_file(
                path, normalize=params.normalize, field_names=params.field_names
            )
        except FileError as error:
            raise _describe_unreadable("the list", error) from None


CandidateSource = CandidatesFile | InlineCandidates | UploadedList


def _describe_unreadable(file: str, error: FileError) -> DecodeError:
    """Return the error of a file of candidates, without the path.

    Analysts read the error. A path would show them the folders of the server.
    """
    line = "" if error.line is None else f"line {error.line}: "
    return DecodeError(f"{file} cannot be read: {line}{error.reason}")


def find_registry_candidates(
    metric: Metric, *, registry: str
) -> CandidatesFile | InlineCandidates | None:
    """Return the candidates of a metric's entry, listed or in a file; None without candidates."""
    if metric.candidates is None:
        return None
    if metric.listed:
        return InlineCandidates(strings=metric.listed, is_ranked=metric.ranked)
    assert not isinstance(metric.candidates, tuple)
    folder = Path(registry).parent
    return CandidatesFile(
        metric=metric.name,
        candidates=metric.candidates,
        folder=folder,
        is_ranked=metric.ranked,
    )


def find_candidates(
    metric: Metric, digest: str, *, registry: str, lists: CandidateLists
) -> CandidateSource | None:
    """Return the source of a metric's candidates, or None if the metric has no candidates.

    The first rule that applies decides:

    1. A digest is given: the uploaded list with this digest, even if it was deleted.
    2. The registry has candidates of the metric: these.
    3. The metric has uploaded lists: the newest one.

    Parameters
    ----------
    metric : the metric
    digest : digest of an uploaded list, or an empty text
    registry : path of the registry, to which the name of a file is relative
    lists : uploaded lists
    """
    if not digest:
        source = find_registry_candidates(metric, registry=registry)
        if source is not None:
            return source
    chosen = digest or lists.find_newest(metric.name)
    if chosen is None:
        return None
    return UploadedList(metric=metric.name, digest=chosen, path=lists.find(metric.name, chosen))

"""Files of a public site: site editions, which never change, and the lists above them.

A site is a folder:

    SITE/index.html                 list of all metrics, each with its newest edition
    SITE/METRIC/index.html          list of the editions of a metric
    SITE/METRIC/EDITION/            one edition: index.html, counts, candidates, trend

An edition is written into a hidden folder, which then gets its name, so readers see it completely
or not at all. The lists are replaced as a whole. A lock on the site's folder admits one writer at a
time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rappor.base.atomic_files import create_folder, lock_folder, replace_file
from rappor.base.errors import FileError
from rappor.candidates.candidates import Candidates
from rappor.comparison.comparison import Comparison
from rappor.comparison.site_edition import (
    EDITION_ID,
    EditionSummary,
    SiteEdition,
    sort_newest_first,
)
from rappor.counts.released_counts import ReleasedCounts
from rappor.privacy.notice import describe_other_params, privacy_notice
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.metric import Metric
from rappor.reporting.site import edition_page, metric_page, site_page

_DRAFT: Final = re.compile(r"\.(index\.html|[0-9a-f]{16})\.[0-9a-f]{16}\.tmp")
"""Matches the name of an unfinished list or edition, which a killed process left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedEdition:
    """Edition on a site.

    Attributes
    ----------
    metric : name of the metric.
    edition : id of the edition, 16 hexadecimal digits.
    page : path of its page.
    new : False if the site contained the edition before.
    """

    metric: str
    edition: str
    page: str
    new: bool


def write_edition(
    site: Path,
    trend: Comparison,
    released: ReleasedCounts,
    candidates: Candidates | None,
    metric: Metric,
    *,
    program: str = "",
) -> PublishedEdition:
    """Write an edition unless it exists, and the two lists that link to it.

    Parameters
    ----------
    site : folder of the site. It is created if needed.
    trend : the trend that the edition shows. It is complete if the metric is.
    released : the counts of the trend.
    candidates : the candidates of the trend; None for an encoding with one bit for each category.
    metric : the metric. The edition contains its privacy notice.
    program : name of the program that the metric is about. The headings of all pages begin with it.

    Returns
    -------
    The published edition.

    Raises
    ------
    FileError
        An edition was changed after it was written.
    """
    notice = privacy_notice(metric).splitlines()
    edition = SiteEdition(
        trend=trend,
        released=released,
        candidates=candidates,
        notice=(*notice, *_describe_other_params(released, metric)),
        program=program,
        complete=metric.complete,
    )
    name = trend.metric
    site.mkdir(parents=True, exist_ok=True)
    with lock_folder(site):
        _delete_drafts(site, site / name)
        editions = _read_editions(site)
        is_new = _write_files(site / name, edition)
        if is_new:
            editions.setdefault(name, []).append(edition.entry)
        entries = sort_newest_first(editions[name])
        _write(site / name / "index.html", metric_page(name, notice, entries, program=program))
        newest = {
            metric_name: sort_newest_first(editions[metric_name])[0]
            for metric_name in sorted(editions)
        }
        _write(site / "index.html", site_page(newest, program=program))
    page = str(site / name / edition.id / "index.html")
    return PublishedEdition(metric=name, edition=edition.id, page=page, new=is_new)


def _describe_other_params(released: ReleasedCounts, metric: Metric) -> Iterator[str]:
    """Yield the protection of reports under parameters that the metric's entry does not accept."""
    params = {
        counts.params.fingerprint: counts.params
        for counts in released.collections
        if counts.n_reports
    }
    for fingerprint in sorted(params.keys() - metric.accepted.keys()):
        yield describe_other_params(params[fingerprint])


def _write_files(folder: Path, edition: SiteEdition) -> bool:
    """Write the folder of an edition, and return whether it is new."""
    path = folder / edition.id
    files = edition.files() | {"index.html": edition_page(edition).encode()}
    if path.exists():
        # The id is a hash of the content, so an existing edition should have the same files. Case:
        # a person changed a file, or another version of this program formats numbers differently.
        # Overwriting the file would break the promise that an edition never changes.
        for name, data in files.items():
            if not (path / name).is_file() or (path / name).read_bytes() != data:
                raise FileError(
                    path / name,
                    "it was changed, or another version computes other digits: an edition stays "
                    "as it was written",
                )
        return False
    folder.mkdir(exist_ok=True)
    with create_folder(path) as draft:
        for name, data in files.items():
            _write(draft / name, data)
    return True


def _read_editions(site: Path) -> dict[str, list[EditionSummary]]:
    """Read the summaries of all editions of a site, by metric.

    Raises FileError for a summary in the folder of another edition. The lists would link to an
    edition that does not exist.
    """
    editions: dict[str, list[EditionSummary]] = {}
    for path in sorted(site.glob("*/*/edition.json")):
        metric, name = path.parts[-3:-1]
        if not METRIC_NAME.fullmatch(metric) or not EDITION_ID.fullmatch(name):
            continue
        entry = EditionSummary.from_json(path.read_bytes(), str(path))
        if (entry.metric, entry.id) != (metric, name):
            raise FileError(path, f"it is not the description of the edition {metric}/{name}")
        editions.setdefault(metric, []).append(entry)
    return editions


def _delete_drafts(*folders: Path) -> None:
    """Delete the unfinished editions and lists of a process that was killed."""
    paths = [path for folder in folders for path in folder.glob(".*.tmp")]
    for path in paths:
        if not _DRAFT.fullmatch(path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _write(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all."""
    with replace_file(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())

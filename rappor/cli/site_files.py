"""The files of a public site: editions, which never change, and the lists above them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rappor.base.atomic_files import create_folder, lock_folder, replace_file
from rappor.base.errors import FileError
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.metric import Metric

if TYPE_CHECKING:
    from rappor.candidates.candidates import Candidates
    from rappor.comparison.comparison import Comparison
    from rappor.comparison.site_edition import EditionSummary, SiteEdition
    from rappor.counts.released import Released

_DRAFT: Final = re.compile(r"\.(index\.html|[0-9a-f]{16})\.[0-9a-f]{16}\.tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An edition: its metric, its page below the folder, and whether it is new."""

    metric: str
    edition: str
    page: str
    new: bool


def _under_other_params(released: Released, metric: Metric) -> Iterator[str]:
    """Say what protected the reports that were not made under the metric's own parameters."""
    from rappor.privacy.notice import describe_other_params

    sets = {each.params.fingerprint: each.params for each in released.collections if each.n_reports}
    for fingerprint in sorted(sets.keys() - metric.accepted.keys()):
        yield describe_other_params(sets[fingerprint])


def write_edition(
    site: Path,
    trend: Comparison,
    released: Released,
    candidates: Candidates | None,
    metric: Metric,
) -> Published:
    """Write the edition unless it is there, and the lists above it; one process at a time.

    Raises FileError if an edition was changed after it was written.
    """
    from rappor.comparison.site_edition import SiteEdition, sort_newest_first
    from rappor.privacy.notice import privacy_notice
    from rappor.reporting.site import metric_page, site_page

    notice = privacy_notice(metric).splitlines()
    edition = SiteEdition(
        trend=trend,
        released=released,
        candidates=candidates,
        notice=(*notice, *_under_other_params(released, metric)),
    )
    name = trend.metric
    site.mkdir(parents=True, exist_ok=True)
    with lock_folder(site):
        _sweep(site, site / name)
        known = _editions(site)
        new = _write_edition(site / name, edition)
        if new:
            known.setdefault(name, []).append(edition.entry)
        _put(site / name / "index.html", metric_page(name, notice, sort_newest_first(known[name])))
        newest = {each: sort_newest_first(known[each])[0] for each in sorted(known)}
        _put(site / "index.html", site_page(newest))
    page = str(site / name / edition.id / "index.html")
    return Published(metric=name, edition=edition.id, page=page, new=new)


def _write_edition(folder: Path, edition: SiteEdition) -> bool:
    """Write a folder, whole or not at all; FileError if another one has its name."""
    from rappor.reporting.site import edition_page

    place = folder / edition.id
    files = edition.files() | {"index.html": edition_page(edition).encode()}
    if place.exists():
        for name, data in files.items():
            if not (place / name).is_file() or (place / name).read_bytes() != data:
                raise FileError(
                    place / name,
                    "it was changed, or another version computes other digits: an edition stays "
                    "as it was written",
                )
        return False
    folder.mkdir(exist_ok=True)
    with create_folder(place) as draft:
        for name, data in files.items():
            _put(draft / name, data)
    return True


def _editions(site: Path) -> dict[str, list[EditionSummary]]:
    """Read what editions there are, by metric; FileError for one that is not where it says."""
    from rappor.comparison.site_edition import EDITION_ID, EditionSummary

    found: dict[str, list[EditionSummary]] = {}
    for path in sorted(site.glob("*/*/edition.json")):
        metric, name = path.parts[-3:-1]
        if not METRIC_NAME.fullmatch(metric) or not EDITION_ID.fullmatch(name):
            continue
        entry = EditionSummary.from_json(path.read_bytes(), str(path))
        if (entry.metric, entry.id) != (metric, name):
            raise FileError(path, f"it is not the description of the edition {metric}/{name}")
        found.setdefault(metric, []).append(entry)
    return found


def _sweep(*folders: Path) -> None:
    """Remove what a process that was killed has left of an edition or a list."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            if not _DRAFT.fullmatch(path.name):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _put(path: Path, content: str | bytes) -> None:
    with replace_file(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())

"""`rappor publish`: a trend as an edition of a static site."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rappor.cli.commands import Command
from rappor.cli.console import Slow, print_json
from rappor.cli.options import detection_options, json_option
from rappor.cli.trend_files import TrendFiles, smooth_option, trend_files
from rappor.decoding.detection import Detection
from rappor.ground.errors import FileError
from rappor.ground.files import alone, filling, replacing
from rappor.protocol.wire import METRIC_NAME
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.counts.released import Released
    from rappor.panels.edition import Edition, EditionEntry

_DRAFT: Final = re.compile(r"\.(index\.html|[0-9a-f]{16})\.[0-9a-f]{16}\.tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An edition: its metric, its page below the folder, and whether it is new."""

    metric: str
    edition: str
    page: str
    new: bool


@click.command(
    cls=Command,
    examples=(
        "rappor publish weeks.json --registry metrics.toml --by week --out site",
        "rappor publish weeks.json --registry metrics.toml --smooth 2 --out site --json",
    ),
)
@trend_files
@smooth_option
@detection_options
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Folder of the site. It is created if needed, and existing files stay.",
)
@json_option
def publish(
    *, files: TrendFiles, smooth: int, detection: Detection, out: str, as_json: bool
) -> None:
    """Write a trend as an edition of a static site.

    COUNTS are files as for `rappor trend`. --registry is required, because the site shows what is
    collected and what is promised. An edition has charts with intervals, tables, the counts, the
    candidates and the command that computes its numbers again. Its address is a hash of these and
    never changes. Publish next week's counts, and they become another edition.

    Everything in the folder is public, including the list of candidates.
    """
    from rappor.candidates.candidates import Candidates
    from rappor.panels.edition import Edition
    from rappor.panels.over_time import trend
    from rappor.privacy.notice import describe

    if files.registry_path is None:
        raise click.UsageError("give --registry: the site says what is collected")
    released, candidates = files.released()
    metric = Registry.load(files.registry_path).metric(files.metric_name or released.metric)
    released = dataclasses.replace(released, metric=metric.name)
    with Slow() as slow:
        found = trend(
            released,
            candidates,
            by=files.by,
            smooth=smooth,
            detection=detection,
            progress=slow,
        )
    notice = describe(metric).splitlines()
    edition = Edition(
        trend=found,
        released=released,
        candidates=candidates if isinstance(candidates, Candidates) else None,
        notice=(*notice, *_under_other_params(released, metric)),
    )
    shown = _write(Path(out), edition, notice)
    if as_json:
        print_json(shown)
    else:
        known = "is" if shown.new else "was already"
        click.echo(f"edition {shown.edition} of {shown.metric} {known} in {shown.page}")


def _under_other_params(released: Released, metric: Metric) -> Iterator[str]:
    """Say what protected the reports that were not made under the metric's own parameters."""
    from rappor.privacy.notice import describe_other

    sets = {each.params.fingerprint: each.params for each in released.collections if each.n_reports}
    for fingerprint in sorted(sets.keys() - metric.accepted.keys()):
        yield describe_other(sets[fingerprint])


def _write(site: Path, edition: Edition, notice: Sequence[str]) -> Published:
    """Write the edition unless it is there, and the lists above it; one process at a time."""
    from rappor.panels.edition import newest_first
    from rappor.reporting.site import metric_page, site_page

    name = edition.trend.metric
    site.mkdir(parents=True, exist_ok=True)
    with alone(site):
        _sweep(site, site / name)
        known = _editions(site)
        new = _write_edition(site / name, edition)
        if new:
            known.setdefault(name, []).append(edition.entry)
        _put(site / name / "index.html", metric_page(name, notice, newest_first(known[name])))
        newest = {each: newest_first(known[each])[0] for each in sorted(known)}
        _put(site / "index.html", site_page(newest))
    page = str(site / name / edition.id / "index.html")
    return Published(metric=name, edition=edition.id, page=page, new=new)


def _write_edition(folder: Path, edition: Edition) -> bool:
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
    with filling(place) as draft:
        for name, data in files.items():
            _put(draft / name, data)
    return True


def _editions(site: Path) -> dict[str, list[EditionEntry]]:
    """Read what editions there are, by metric; FileError for one that is not where it says."""
    from rappor.panels.edition import EDITION_ID, EditionEntry

    found: dict[str, list[EditionEntry]] = {}
    for path in sorted(site.glob("*/*/edition.json")):
        metric, name = path.parts[-3:-1]
        if not METRIC_NAME.fullmatch(metric) or not EDITION_ID.fullmatch(name):
            continue
        entry = EditionEntry.from_json(path.read_bytes(), str(path))
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
    with replacing(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())

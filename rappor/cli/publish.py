"""`rappor publish`: a trend as an edition of a static site."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rappor.cli.commands import Command
from rappor.cli.console import Slow, print_json
from rappor.cli.options import Detection, detection_options, json_option
from rappor.cli.trend_files import TrendFiles, smooth_option, trend_files
from rappor.errors import FileError
from rappor.files import replacing
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.decoding.trends.edition import Edition, EditionEntry


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
    help="Folder of the site; it is made if it is not there, and what is in it stays.",
)
@json_option
def publish(
    *, files: TrendFiles, smooth: int, detection: Detection, out: str, as_json: bool
) -> None:
    """Write a trend as an edition of a static site.

    COUNTS are files as for `rappor trend`; --registry is needed, because the site says what is
    collected and under which promise. An edition has charts with intervals, tables, the counts, the
    candidates and the command that makes its numbers again. Its address is a hash of these, and it
    never changes: publish next week's counts and they are another edition.

    Everything in the folder is meant to be read by everybody, the list of candidates too.
    """
    from rappor.candidates.candidates import Candidates
    from rappor.decoding.trends.edition import Edition
    from rappor.decoding.trends.over_time import trend
    from rappor.privacy.notice import describe

    if files.registry_path is None:
        raise click.UsageError("give --registry: the site says what is collected")
    released, candidates = files.released()
    metric = Registry.load(files.registry_path).metric(files.metric_name or released.metric)
    released = dataclasses.replace(released, metric=metric.name)
    with Slow() as slow:
        found = trend(
            released,
            candidates,  # type: ignore[arg-type]  # a stream is refused with a sentence
            by=files.by,
            smooth=smooth,
            level=detection.level,
            correction=detection.correction,
            confidence=detection.confidence,
            progress=slow,
        )
    edition = Edition(
        trend=found,
        released=released,
        candidates=candidates.strings if isinstance(candidates, Candidates) else None,
        notice=tuple(describe(metric).splitlines()),
    )
    shown = _write(Path(out), edition)
    if as_json:
        print_json(shown)
    else:
        known = "is" if shown.new else "was already"
        click.echo(f"edition {shown.edition} of {shown.metric} {known} in {shown.page}")


def _write(site: Path, edition: Edition) -> Published:
    """Write the edition unless it is there, and the lists above it."""
    from rappor.decoding.trends.edition import newest_first
    from rappor.reporting.site import metric_page, site_page

    name = edition.trend.metric
    new = _write_edition(site / name, edition)
    entries = newest_first(_entries(site / name))
    _put(site / name / "index.html", metric_page(name, edition.notice, entries))
    newest = {
        folder.name: newest_first(found)[0]
        for folder in sorted(site.iterdir())
        if (found := _entries(folder))
    }
    _put(site / "index.html", site_page(newest))
    page = str(site / name / edition.id / "index.html")
    return Published(metric=name, edition=edition.id, page=page, new=new)


def _write_edition(folder: Path, edition: Edition) -> bool:
    """Write a folder, whole or not at all; FileError if another one has its name."""
    from rappor.reporting.site import edition_page

    place = folder / edition.id
    files = edition.files()
    if place.exists():
        for name, data in files.items():
            if not (place / name).is_file() or (place / name).read_bytes() != data:
                raise FileError(place / name, "it was changed: an edition stays as it was written")
        return False
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".edition-", dir=folder))
    try:
        for name, data in files.items():
            _put(draft / name, data)
        _put(draft / "index.html", edition_page(edition))
        draft.chmod(0o755)
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def _entries(folder: Path) -> list[EditionEntry]:
    """Read what editions a metric has."""
    from rappor.decoding.trends.edition import EditionEntry

    paths = sorted(folder.glob("[0-9a-f]*/edition.json"))
    return [EditionEntry.from_json(path.read_bytes(), str(path)) for path in paths]


def _put(path: Path, content: str | bytes) -> None:
    with replacing(path) as file:
        file.write(content if isinstance(content, bytes) else content.encode())

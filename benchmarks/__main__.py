"""`python -m benchmarks [name ...] [--quick] [--json PATH]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import (
    accuracy,
    association,
    atlas,
    audits,
    categories,
    changes,
    charts,
    collector,
    commands,
    curves,
    device,
    discovery,
    distributions,
    engines,
    grid,
    item_sets,
    kit,
    listed,
    mechanisms,
    needed,
    page,
    permanent,
    plans,
    published,
    ranked_lists,
    reading,
    record,
    reference,
    scenarios,
    sizing,
    speed,
    stream,
    sums,
    trends,
)
from benchmarks.tables import Table

BENCHMARKS: dict[str, Callable[..., list[Table]]] = {
    # Accuracy of the estimates.
    "paper": accuracy.paper,
    "coverage": accuracy.coverage,
    "sums": sums.sums,
    "distributions": distributions.compare_with_nnls,
    "association": association.associations,
    "trends": trends.trends,
    "changes": changes.changes,
    "categories": categories.compare_categories,
    "permanent": permanent.compare_permanent_responses,
    # The atlas decodes collections in many settings, and marks the settings in which errors fail.
    "atlas": atlas.atlas,
    "audits": audits.audits,
    # Comparison with published results and other mechanisms.
    "tables": published.tables,
    "grid": grid.grid,
    "curves": curves.curves,
    "mechanisms": mechanisms.mechanisms,
    # Planning, and the search for unknown strings.
    "plan": plans.plans,
    "discover": discovery.discovery,
    "sets": item_sets.compare_set_mechanisms,
    # A metric of strings whose registry entry lists candidates, compared with the pair of metrics
    # that earlier versions needed for the same answers.
    "listed": listed.compare_list_with_pair,
    "ranked": ranked_lists.ranked_lists,
    "needed": needed.compare_needed_reports,
    "scenarios": scenarios.scenarios,
    # Speed of the library.
    "decode": speed.decode,
    "stream": stream.stream,
    "commands": commands.commands,
    "draw": speed.draw,
    "aggregate": speed.aggregate,
    "engines": engines.engines,
    "hash": speed.hash_candidates,
    # Counts of simulated devices that are drawn from their exact distribution, without reports.
    "exact": speed.exact,
    # Speed of the clients. The kit (`rappor_client.kit`) adds telemetry to a command-line tool, and
    # the page runs the JavaScript client in a browser.
    "device": device.device,
    "kit": kit.kit,
    "page": page.page,
    # Speed of the collector. The time of reading is the time to parse uploads.
    "collector": collector.collector,
    "sizing": sizing.sizing,
    "reading": reading.reading,
    # Decodes of collections that google/rappor has decoded, too.
    "reference": reference.reference,
}
"""Function of each benchmark, by the name on the command line. A run without names runs all of them
in this order. README.md says which question each benchmark answers."""


def main() -> None:
    """Run the named benchmarks, or all of them without a name, and print their tables."""
    options = _build_parser().parse_args()
    tables: list[Table] = []
    for name in options.names or list(BENCHMARKS):
        results = record.read(name) if options.recorded else _run(name, options)
        for table in results:
            # Escape sequences of colours would be unreadable in a file or a pipe.
            text = table.text(is_coloured=sys.stdout.isatty())
            sys.stdout.write(f"{text}\n\n")
            sys.stdout.flush()
            tables.append(table)
    if options.charts:
        for path in charts.draw(tables, options.charts):
            sys.stdout.write(f"wrote {path}\n")
    if options.json:
        record.write(options.json, tables, quick=options.quick)


def _run(name: str, options: argparse.Namespace) -> list[Table]:
    """Run one benchmark. Only `reference` has an option of its own."""
    own_options = {"cases": options.cases} if name == "reference" else {}
    return BENCHMARKS[name](quick=options.quick, **own_options)


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure speed and accuracy."
    )
    parser.add_argument(
        "names",
        nargs="*",
        type=_check_name,
        metavar="name",
        help=f"benchmarks to run: {', '.join(BENCHMARKS)}; all without a name",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run with fewer devices and repetitions, for a minute or two",
    )
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results here")
    parser.add_argument(
        "--recorded",
        action="store_true",
        help="print the results of an earlier run, which are in benchmarks/results; run nothing",
    )
    parser.add_argument(
        "--charts", type=Path, metavar="DIR", help="draw the results of `curves` into this folder"
    )
    parser.add_argument(
        "--cases",
        type=Path,
        metavar="DIR",
        help="for `reference`: decode the collections in this folder, and not those in "
        "reference_cases.tar.xz",
    )
    return parser


def _check_name(name: str) -> str:
    """Return the name of a benchmark; raise an error for another name.

    The option `choices` of argparse would do the same, but it refuses an empty list of names.
    """
    if name not in BENCHMARKS:
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(BENCHMARKS)}, got {name!r}")
    return name


if __name__ == "__main__":
    main()

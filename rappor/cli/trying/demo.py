"""`rappor demo`: simulate a collection, and print its estimates beside the true numbers.

Each simulated device has a value, and sends one noisy report. The values are English words, or the
values of a file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from rappor.base.atomic_files import read_text
from rappor.base.errors import FileError
from rappor.base.sentence_numbers import format_count
from rappor.base.text_lines import split_filled_lines
from rappor.cli.commands import command
from rappor.cli.console import ProgressDisplay, print_json, print_parts, warn_about_candidates
from rappor.cli.option_values import PROFILE_NAME, WholeNumber
from rappor.cli.options import (
    chart_option,
    flag_field,
    json_option,
    option_field,
    save_chart,
    seed_option,
)
from rappor.protocol.loss import epsilon_1, epsilon_inf
from rappor.protocol.params import Params
from rappor.reporting.numbers import format_even_odds, format_short_percent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rappor.counts.counts import Counts
    from rappor.decoding.estimates import Estimates
    from rappor.simulation.collection import ReportBlock
    from rappor.simulation.population import Population

CANDIDATES: Final = 10_000
"""Largest number of candidates. The candidates are the most frequent values. With more candidates,
the demo takes more time and detects few words more."""

REPORTS: Final = 1_000_000
"""Default number of devices, each with one report. More devices detect rarer words and take
more time."""

SMALL: Final = 20
"""Number of values, which are also the candidates, of the option --small."""

SMALL_REPORTS: Final = 10_000
"""Default number of devices of the option --small. More devices detect rarer words."""

_MAX_ROWS: Final = 20
"""Largest number of rows of the printed table, so that it fits on a screen."""

MAX_COUNTED_DEVICES: Final = 10**8
"""Largest number of devices that a CSV file with the header value,count may have in all. The value
of each device takes 8 bytes of memory, so the limit is 800 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demo:
    """Result of the demo: the estimated and the true number of devices with each value.

    Attributes
    ----------
    estimates : the estimates.
    truth : number of devices with each value.
    params : parameters of the reports.
    profile : name of the profile.
    n_values : number of values of the population.
    """

    estimates: Estimates
    truth: Mapping[str, int]
    params: Params
    profile: str
    n_values: int

    @property
    def n_detected(self) -> int:
        """The number of detected candidates."""
        return int(self.estimates.detected.sum())

    @property
    def n_false(self) -> int:
        """The number of false detections.

        A detection counts as false if the true number of devices with the value is smaller than the
        standard error of the estimated number. An estimate cannot distinguish such a true number
        from 0, so the noise caused the detection.
        """
        rows = self.estimates.rows(detected_only=True)
        return sum(self.truth.get(row["candidate"], 0) < row["std_error"] for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the object of `rappor decode --json`, with the truth and the privacy loss."""
        document = self.estimates.to_dict(detected_only=True)
        for row in document["estimates"]:
            row["truth"] = self.truth.get(row["candidate"], 0)
        return document | {
            "detected": self.n_detected,
            "false": self.n_false,
            "epsilon_1": epsilon_1(self.params),
            "epsilon_inf": epsilon_inf(self.params),
        }


@command(
    "rappor demo --seed 1",
    "rappor demo --profile low-noise --reports 1e5 --chart words.svg",
    "rappor demo --values words.txt",
    "rappor demo --small --profile low-noise --seed 1",
)
def demo(
    *,
    small: bool = flag_field(
        "Simulate ten thousand devices, each with one of the 20 most frequent words."
    ),
    values_path: str | None = option_field(
        "FILE",
        "Use your own data: a file with one value per line, or CSV with the header value,count or "
        "value,weight.",
    ),
    reports: int | None = option_field(
        WholeNumber(1),
        "Number of devices, each with one report.  [default: 1,000,000; 10,000 with --small; with "
        "--values, the number of its values]",
    ),
    profile: str = option_field(
        PROFILE_NAME,
        "Named parameters, which determine the noise. strict has the most noise.",
        default="balanced",
    ),
    seed: int | None = seed_option(),
    chart: str | None = chart_option(),
    as_json: bool = json_option(),
) -> None:
    """Simulate a million devices and find their common words.

    Each device has one English word and sends one noisy report. The decoder gets only the sums of
    the reports, and tests 10,000 candidate words. A published list of word frequencies says which
    words are likely, so the tests give more weight to the likely words. With --values and --small
    all candidates have the same weight. The table shows the true number of devices beside each
    estimate.
    """
    from rappor.candidates.candidates import Candidates
    from rappor.decoding.decoder import decode
    from rappor.estimator.error_control import ErrorControl
    from rappor.simulation.collection import simulate_reports

    params = Params.profile(profile)
    if small and values_path is not None:
        raise click.UsageError("give either --small or --values")
    # A file of values may also say which device has which value. Otherwise the simulation draws a
    # value for each device, by the weights of the population.
    device_values = None
    if small:
        population = _select_common_words()
    else:
        population, device_values = _read_population(values_path)
    if device_values is not None and reports is not None:
        raise click.UsageError(
            "--reports must be omitted: the file of --values says how many devices there are"
        )
    if device_values is not None:
        n_devices = len(device_values)
    elif reports is not None:
        n_devices = reports
    else:
        n_devices = SMALL_REPORTS if small else REPORTS
    candidates = Candidates.from_list(_select_most_frequent_values(population))
    # A ranked test gives more weight to the first candidates of a list. The order must not come
    # from the reports themselves. The order of English words comes from a published list of
    # frequencies. The order of the values of a file comes from the devices of this collection, so
    # the tests have equal weights. They have equal weights with --small, too, because the weights
    # of only 20 candidates would hardly differ.
    error_control = ErrorControl(ranked=values_path is None and not small)
    with ProgressDisplay() as progress:
        blocks = simulate_reports(
            population, params, n_reports=n_devices, seed=seed, values=device_values
        )
        counts, devices = _add_reports(
            blocks, params, len(population), n_reports=n_devices, progress=progress
        )
        estimates = decode(
            counts,
            candidates,
            error_control=error_control,
            reports_per_device=1,
            progress=progress,
        )
    result = Demo(
        estimates=estimates,
        truth=dict(zip(population.values, map(int, devices), strict=True)),
        params=params,
        profile=profile,
        n_values=len(population),
    )
    save_chart(estimates, chart)
    if as_json:
        print_json(result.to_dict())
    else:
        _print_demo(result)
    warn_about_candidates(candidates)


def _select_common_words() -> Population:
    """Return a population of the 20 most frequent words, with their relative frequencies."""
    from rappor.simulation.population import Population, english_words

    words = english_words()
    common = _select_most_frequent_values(words)[:SMALL]
    shares = dict(zip(words.values, words.weights, strict=True))
    return Population(common, [shares[word] for word in common])


def _read_population(path: str | None) -> tuple[Population, NDArray[np.int64] | None]:
    """Return the population of a file, or of English words without a file.

    Returns
    -------
    population : Population
    device_values : (devices,) int64, or None
        Index of the value of each device in the population. None if the file contains no numbers
        of devices: the value of each device is then drawn by the weights of the population.
    """
    import numpy as np

    from rappor.simulation.population import Population, english_words

    if path is None:
        return english_words(), None
    text = read_text(path)
    lines = split_filled_lines(text)
    if not lines:
        raise FileError(path, "it is empty: write one value a line")
    header = lines[0].strip().replace('"', "")
    if header == "value,weight":
        return Population.from_csv(path), None
    if header == "value,count":
        population, devices = Population.from_csv(path), _read_counts(text, path)
    elif "," in header:
        # Case: values such as "Paris, France", one a line. Without a header, nobody knows whether
        # the comma belongs to the value or separates two columns.
        reason = (
            "the header must be value,count or value,weight: lines without a header must contain "
            "no comma"
        )
        raise FileError(path, reason, line=1)
    elif separator := next((sign for sign in ";\t" if sign in header), ""):
        # Case: spreadsheets of some countries separate columns by semicolons. Without this error,
        # each line would become one value, and the demo would detect no word.
        name = "semicolons" if separator == ";" else "tabs"
        raise FileError(path, f"its columns are separated by {name}: use commas", line=1)
    else:
        # Case: one value a line, and each line is a device. The weights of the population are the
        # shares of the lines, so the weight times the number of lines is the number of devices.
        population = Population.from_values(lines)
        devices = np.rint(population.weights * len(lines)).astype(np.int64)
    return population, np.repeat(np.arange(len(devices)), devices)


def _read_counts(text: str, path: str) -> NDArray[np.int64]:
    """Read the number of devices of each value.

    `Population.from_csv` has checked the header, the columns and the values.
    """
    import numpy as np

    rows = csv.reader(io.StringIO(text, newline=""))
    next(rows)
    counts: list[int] = []
    for _, count in rows:
        if not float(count).is_integer():
            message = f"count must be a whole number, got {count!r}"
            raise FileError(path, message, line=rows.line_num)
        counts.append(int(float(count)))
    if sum(counts) > MAX_COUNTED_DEVICES:
        raise FileError(
            path,
            f"counts must add up to at most {MAX_COUNTED_DEVICES:,} devices; write weights, or use "
            "rappor simulate",
        )
    return np.array(counts, dtype=np.int64)


def _add_reports(
    blocks: Iterator[ReportBlock],
    params: Params,
    n_values: int,
    *,
    n_reports: int,
    progress: ProgressDisplay,
) -> tuple[Counts, NDArray[np.int64]]:
    """Add the reports of all devices. Return the counts, and the number of devices by value."""
    import numpy as np

    from rappor.counts.counts import Counts

    counts = Counts.zero(params)
    devices = np.zeros(n_values, dtype=np.int64)
    for block in blocks:
        counts += Counts.from_packed(block.packed, block.cohorts, params)
        devices += np.bincount(block.values, minlength=n_values)
        progress("devices report", counts.n_reports, n_reports)
    return counts, devices


def _select_most_frequent_values(population: Population) -> list[str]:
    """Return the most frequent values, at most 10,000."""
    import numpy as np

    order = np.argsort(-population.weights, kind="stable")[:CANDIDATES]
    return [population.values[i] for i in order]


def _print_demo(result: Demo) -> None:
    """Print the table of detected words, and sentences about false detections and privacy."""
    from rappor.reporting.footnotes import format_unallocated
    from rappor.reporting.text import detected_table

    estimates, n_detected = result.estimates, result.n_detected
    # Estimates have weights only if the candidates are ranked.
    is_ranked = estimates.weight is not None
    ranked = ", ranked by a published list of frequencies," if is_ranked else ""
    if n_detected == 0:
        detected = "none of them."
    elif n_detected <= _MAX_ROWS:
        detected = f"{n_detected:,}:"
    else:
        detected = f"{n_detected:,}, of which these {_MAX_ROWS} are the most frequent:"
    print_parts(
        f"Each of {format_count(estimates.reports, 'device')} has one of "
        f"{format_count(result.n_values, 'value')} and has sent one noisy report of "
        f"{format_count(result.params.k, 'bit')} (profile {result.profile}). We test "
        f"{format_count(estimates.n_candidates, 'candidate')}{ranked} against the sums of the "
        f"reports and detect {detected}\n"
    )
    if n_detected:
        print_parts(detected_table(estimates, truth=result.truth, max_rows=_MAX_ROWS))
    print_parts(
        *(warning.sentence for warning in estimates.warnings),
        *([f"\n{_describe_false(result)}"] if n_detected else []),
        # The share of the reports that no detected candidate explains.
        *format_unallocated(estimates),
        _describe_privacy(result.params),
    )


def _describe_false(result: Demo) -> str:
    """Return sentences about the detected candidates that count as false (`Demo.n_false`)."""
    n_detected, n_false = result.n_detected, result.n_false
    if not n_false:
        if n_detected == 1:
            return "The detected candidate is not false."
        return f"None of the {n_detected:,} detected is false."
    # A false string may have a few devices: a file of --values contains every candidate.
    are, them = ("is", "it") if n_false == 1 else ("are", "them")
    # Case: 5 of 65 are more than 5 %. A reader could take the rate for a limit of every collection.
    control = result.estimates.error_control
    level = format_short_percent(control.alpha)
    if control.method == "bonferroni":
        average = f"At most {level} of many collections have any false detection (Bonferroni)."
    else:
        average = (
            f"On average over many collections, at most {level} of the detected are false (false "
            "discovery rate)."
        )
    return (
        f"Of the {n_detected:,} detected, {n_false:,} {are} false: fewer devices have {them} than "
        f"the standard error of the estimate. {average}"
    )


def _describe_privacy(params: Params) -> str:
    """Return sentences about the beliefs of an observer after one report and after all reports."""
    one_report, any_number = epsilon_1(params), epsilon_inf(params)
    return (
        "Somebody who thought it 50 % likely that a device has a certain value is at most "
        f"{format_even_odds(one_report)} sure after its report (epsilon_1 = {one_report:.2f}), "
        f"and at most {format_even_odds(any_number)} sure after any number of reports of one epoch "
        f"(epsilon_inf = {any_number:.2f}). The losses of several epochs add up."
    )

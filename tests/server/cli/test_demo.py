"""`rappor-server demo`: simulated reports, a dashboard, and no files afterwards."""

from __future__ import annotations

import csv
import io
import os
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from collectors import build_command
from plain_http import NO_CERTIFICATES
from rappor_server.cli.demo_metrics import STREAMS, WEEKS, Stream

TIMEOUT_SECONDS = 300.0
"""Longest time in seconds until the overview page has its results, which workers compute in the
background. With a smaller value the test could fail on a busy machine."""


@pytest.mark.parametrize(
    ("weeks", "options"),
    [
        pytest.param(2, ["--weeks", "2"], marks=pytest.mark.slow),
        pytest.param(WEEKS, [], marks=pytest.mark.acceptance),
    ],
)
def test_the_demo_fills_a_dashboard_and_leaves_nothing(
    tmp_path: Path, weeks: int, options: list[str]
) -> None:
    """The printed link shows a dashboard with results, and Ctrl-C leaves no process and no file.

    The demo is the first command that a stranger runs. Temporary files go to `TMPDIR`, which is
    empty after the demo.
    """
    with subprocess.Popen(
        build_command("demo", "--no-browser", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if link := re.search(r"http://\S+", line):
                    break
            # A heading, one line for each week, the line about decoding, and the link. On a
            # terminal the lines of the weeks would overwrite each other.
            assert len(lines) == 3 + weeks
            assert link is not None
            with httpx.Client(
                verify=NO_CERTIFICATES, follow_redirects=True, timeout=TIMEOUT_SECONDS
            ) as http:
                page = http.get(link.group())
                assert page.status_code == 200
                # The first page that a person sees has the results of all four metrics.
                assert "Being computed" not in page.text
                assert page.text.count(" leads with ") == 3
                assert page.text.count(" of the devices have ") == 1
                assert "<h1>Sketch: metrics</h1>" in page.text
                # The metric `search_engine`, which counts installations, has 1,000 reports on each
                # of the seven days of the last whole week.
                assert "<strong>7,000</strong> active installations in the week" in page.text
                for name in {stream.metric for stream in STREAMS}:
                    assert f"/pages/metrics/{name}" in page.text
                    health = http.get(page.url.join(f"/pages/metrics/{name}/health")).text
                    assert f"<h1>{name}: collecting normally</h1>" in health
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        n_metrics = len({stream.metric for stream in STREAMS})
        # Without a terminal, each number of results has a line. A traceback would be a line, too.
        numbers = [f"{done} of {n_metrics} results" for done in range(n_metrics + 1)]
        assert process.stderr.read().splitlines() == numbers
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stream", STREAMS, ids=lambda stream: stream.metric + stream.segment)
def test_every_week_has_values(stream: Stream) -> None:
    """The population of each week has several values, all with positive weights.

    The weights change by a constant from week to week, so a steep decrease would make a weight
    negative in the last weeks. `rappor simulate` refuses negative weights.
    """
    for week in range(WEEKS):
        header, *rows = csv.reader(io.StringIO(stream.format_population(week), newline=""))
        assert header == ["value", "weight"]
        assert len(rows) > 1
        assert all(float(weight) > 0 for _, weight in rows)


def test_sets_have_the_shares_of_their_items() -> None:
    """The total weight of all sets that contain an item is the percentage of the item.

    The demo states how many devices have each item, but `rappor simulate` reads whole sets. The
    items are independent, so the probability of a set is a product, and the probabilities of all
    sets add to 1. The tolerance of 1e-4 covers weights that are printed with six digits.
    """
    (stream,) = (stream for stream in STREAMS if stream.has_sets)
    for week in range(WEEKS):
        table = csv.DictReader(io.StringIO(stream.format_population(week), newline=""))
        sets = [(row["value"].split("\t"), float(row["weight"])) for row in table]
        assert sum(weight for _, weight in sets) == pytest.approx(1, abs=1e-4)
        for item, first_percentage in stream.weights.items():
            share = sum(weight for items, weight in sets if item in items)
            expected = (first_percentage + week * stream.steps.get(item, 0)) / 100
            assert share == pytest.approx(expected, abs=1e-4)

"""Pages of the client: the blocks of README.md run, and REFERENCE.md lists every name.

Each program runs on two days in a row, because the report of a day leaves on the next day.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from accepting_collector import AcceptingCollector, run_accepting_collector
from collectors import run_script
from places import ROOT
from programs import shift_clock
from rappor_client import BudgetCap, ClientOptions, FlushReason, Outcome, QueueLimits, SkipReason
from readers import Block, is_shown, read_blocks

from rappor import Registry

REFERENCE = (ROOT / "client" / "REFERENCE.md").read_text(encoding="utf-8")
BLOCKS = read_blocks(ROOT / "client" / "README.md")
OUTPUTS = [
    i
    for i, block in enumerate(BLOCKS)
    if block.language == "text" and i and BLOCKS[i - 1].language in ("sh", "python")
]
"""Contains the indices of the blocks that show the output of the block before them."""


def follow(block: Block, folder: Path, collector: AcceptingCollector, day: int) -> str:
    """Run a block in a folder, which is also the home of the reader; return the output.

    `day` is the number of days from now on which a program runs.
    """
    if block.language == "toml":
        name = re.findall(r"`(\w+\.toml)`", block.before)[-1]
        (folder / name).write_text(block.text)
    if block.language not in ("python", "sh"):
        return ""
    text = block.text
    for address in ("https://telemetry.example.org", "http://127.0.0.1:8080"):
        text = text.replace(address, collector.url)
    typed = text
    if block.language == "python":
        typed = f"python3 -c {shlex.quote(shift_clock(day, text))}"
    setup = f"unset XDG_DATA_HOME RAPPOR_DISABLED DO_NOT_TRACK\nexport HOME={folder}\n"
    ended = run_script(setup + typed, folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture(scope="module")
def collector() -> Iterator[AcceptingCollector]:
    """A collector for the registry that all programs of the page use."""
    registry = next(block for block in BLOCKS if block.language == "toml")
    with run_accepting_collector(Registry.loads(registry.text)) as server:
        yield server


@pytest.fixture(scope="module")
def printed(
    collector: AcceptingCollector, tmp_path_factory: pytest.TempPathFactory
) -> dict[Block, str]:
    """The output of every block on its last day, from the first block to the last."""
    home = tmp_path_factory.mktemp("home")
    outputs = {}
    # Each block has two days of its own, so that its first report leaves on its second day.
    for i, block in enumerate(BLOCKS):
        if block.language == "python" and "withdraw()" not in block.text:
            follow(block, home, collector, day=2 * i)
        outputs[block] = follow(block, home, collector, day=2 * i + 1)
    return outputs


@pytest.mark.slow
def test_every_block_runs(printed: Mapping[Block, str], collector: AcceptingCollector) -> None:
    """All blocks run, and the collector accepts their reports."""
    languages = [block.language for block in printed]
    assert languages.count("python") == 6
    assert languages.count("sh") == 4
    sent = Counter(report.metric for report in collector.reports)
    assert sent["search_engine"] == 1  # by the tool
    # Two are of the command `send`, and one is of the web recipe. The report of the desktop recipe
    # leaves at a random time of a day.
    assert sent["theme"] in (3, 4)


def test_registries_are_valid() -> None:
    """The page has the registry of its programs, and a registry with a metric of sets."""
    registries = [Registry.loads(block.text) for block in BLOCKS if block.language == "toml"]
    assert [sorted(registry) for registry in registries] == [
        ["search_engine", "theme"],
        ["plugins"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("i", OUTPUTS)
def test_output_is_as_shown(i: int, printed: Mapping[Block, str]) -> None:
    """A block of text equals the output of the block before it. Three dots stand for any text."""
    assert is_shown(BLOCKS[i].text, printed[BLOCKS[i - 1]])


def test_tables_have_every_option_and_its_default() -> None:
    """The reference has a row for each field of the three classes of options, with its default.

    Booleans and texts are printed as code, numbers with commas. Other defaults, such as infinity,
    are not compared.
    """
    for options in (ClientOptions(), BudgetCap(), QueueLimits()):
        for field in dataclasses.fields(options):
            # The name may be in the first cell, or in the second cell after a class or an empty
            # cell.
            pattern = rf"^\|(?: (?:`\w+` )?\|)? `{field.name}` \|.*$"
            (row,) = re.findall(pattern, REFERENCE, re.MULTILINE)
            default = getattr(options, field.name)
            if isinstance(default, bool | str):
                assert f"`{default!r}`" in row.replace('"', "'")
            elif isinstance(default, int | float) and default != math.inf:
                assert f"| {default:,} |" in row


def test_tables_have_every_outcome_and_whether_it_is_true() -> None:
    """The tables contain every outcome and reason, and whether it is true.

    Reasons with one meaning share a row.
    """
    for reason in SkipReason:
        assert f"`{reason.name}`" in REFERENCE
    for outcome in (Outcome.RECORDED, Outcome.SKIPPED, Outcome.FAILED):
        assert f"| `{outcome.word.upper()}` | {'yes' if outcome else 'no'} |" in REFERENCE
    _, _, table = REFERENCE.partition("| `FlushReason` | true |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    truths = {
        name: truth == "yes"
        for names, truth in (row.split(" | ")[:2] for row in rows)
        for name in re.findall(r"\w+", names)
    }
    # The first three reasons are true: no report is queued any more.
    true_reasons = {reason.name for reason in list(FlushReason)[:3]}
    assert truths == {reason.name: reason.name in true_reasons for reason in FlushReason}

"""What client/README.md shows is what happens, from an empty folder on.

Each program is run on two days in a row, because the report of a day leaves on the next day.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from accepting_collector import AcceptingCollector, accepting
from collectors import run_script
from places import ROOT
from programs import on_day
from rappor_client import FlushReason, Outcome, SkipReason
from readers import Block, blocks

from rappor import Registry

PAGE = ROOT / "client" / "README.md"
TEXT = PAGE.read_text(encoding="utf-8")

BLOCKS = blocks(PAGE)


def follow(block: Block, folder: Path, collector: AcceptingCollector, day: int) -> str:
    """Do what a block says in a folder, which is also the reader's home; return what it prints.

    `day` is the number of days from now on which a program runs.
    """
    if block.language == "toml":
        (folder / "metrics.toml").write_text(block.text)
    if block.language not in ("python", "sh"):
        return ""
    text = block.text
    for address in ("https://telemetry.example.org", "http://127.0.0.1:8080"):
        text = text.replace(address, collector.url)
    typed = text
    if block.language == "python":
        typed = f"python3 -c {shlex.quote(on_day(day, text))}"
    own = f"unset XDG_DATA_HOME RAPPOR_DISABLED DO_NOT_TRACK\nexport HOME={folder}\n"
    ended = run_script(own + typed, folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture(scope="module")
def collector() -> Iterator[AcceptingCollector]:
    """A collector for the page's registry."""
    (registry,) = (block for block in BLOCKS if block.language == "toml")
    with accepting(Registry.loads(registry.text)) as server:
        yield server


@pytest.fixture(scope="module")
def printed(
    collector: AcceptingCollector, tmp_path_factory: pytest.TempPathFactory
) -> dict[Block, str]:
    """What every block prints on its last day, followed from the first to the last."""
    home = tmp_path_factory.mktemp("home")
    outputs = {}
    for i, block in enumerate(BLOCKS):
        if block.language == "python" and "withdraw()" not in block.text:
            follow(block, home, collector, day=2 * i)
        outputs[block] = follow(block, home, collector, day=2 * i + 1)
    return outputs


def output_of(words: str, printed: Mapping[Block, str]) -> str:
    """Return what the one block that holds the words prints."""
    (found,) = (text for block, text in printed.items() if words in block.text)
    return found


@pytest.mark.slow
def test_every_block_runs(printed: Mapping[Block, str], collector: AcceptingCollector) -> None:
    """Also those that print nothing; what they send is accepted."""
    languages = [block.language for block in printed]
    assert languages.count("python") == 6
    assert languages.count("sh") == 3
    sent = Counter(report.metric for report in collector.reports)
    assert sent["search_engine"] == 3  # one by the tool, two by the command `send`
    # One is of the web recipe. The report of the desktop recipe leaves at a random time of a day.
    assert sent["theme"] in (1, 2)


def test_tool_sends_the_report_of_the_day_before(printed: Mapping[Block, str]) -> None:
    """The first recipe says what became of its report."""
    assert output_of("flushed", printed) == "the collector accepted everything\n"


def test_local_mode_sends_nothing(printed: Mapping[Block, str]) -> None:
    """It says so, and keeps the report."""
    assert output_of('"local"', printed) == "no collector was named\n1\n"


def test_people_of_the_web_recipe_are_devices(printed: Mapping[Block, str]) -> None:
    """Who agreed has a report that is sent, who did not has none."""
    assert output_of("anna", printed).splitlines() == [
        "recorded",
        "skipped: there is no consent",
        "the collector accepted everything",
        "nothing was waiting",
    ]


def test_people_are_shown_what_the_page_shows(printed: Mapping[Block, str]) -> None:
    """The text of spent(), word for word, and then the bytes that left."""
    preview, spent = (block.text for block in BLOCKS if block.language == "text")
    output = output_of("client.privacy_spent()", printed)
    assert output.startswith(spent)
    assert output_of("preview", printed).endswith(preview)
    assert '"reports":[{"metric":"search_engine"' in output


def test_command_shows_and_sends(printed: Mapping[Block, str]) -> None:
    """After the withdrawal one number is left; a collector is tried by hand."""
    assert "Reserved for " in output_of("--json", printed)
    assert output_of("duckduckgo qwant", printed).count("search_engine: accepted (") == 2


def test_tables_hold_every_outcome_and_whether_it_is_true() -> None:
    """One row each, or one for those that mean the same; every reason is named."""
    for reason in SkipReason:
        assert f"`{reason.name}`" in TEXT
    for outcome in (Outcome.RECORDED, Outcome.SKIPPED, Outcome.FAILED):
        assert f"| `{outcome.word.upper()}` | {'yes' if outcome else 'no'} |" in TEXT
    _, _, table = TEXT.partition("| `FlushReason` | true |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    told = {
        name: truth == "yes"
        for names, truth in (row.split(" | ")[:2] for row in rows)
        for name in re.findall(r"\w+", names)
    }
    done = {reason.name for reason in list(FlushReason)[:3]}
    assert told == {each.name: each.name in done for each in FlushReason}

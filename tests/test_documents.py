"""Documents: their numbers and outputs equal those of the library, and their links exist."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

from rappor.auditing import inference_attack
from rappor.base.sentence_numbers import format_belief
from rappor.planning.category_noise import CategoryNoise
from rappor.privacy import linkability, posterior_bound
from rappor.protocol.loss import epsilon_1, epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.protocol.profiles import PROFILES
from rappor.registry.budget import reserve
from rappor.registry.metric import Metric

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(
    path
    for path in [ROOT / "README.md", *ROOT.glob(".github/**/*.md"), *ROOT.glob("*/**/*.md")]
    if ".venv" not in path.parts
)

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def front_page_blocks(language: str) -> list[str]:
    """Return the blocks of a language on the front page, in their order."""
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def numbers(lines: list[str]) -> list[Decimal]:
    """Return the numbers in some lines, in their order, each with its printed digits."""
    return [Decimal(number.replace(",", "")) for number in NUMBER.findall("\n".join(lines))]


def run(*words: str) -> str:
    """Run a program by this interpreter, and return its standard output."""
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return process.stdout


def assert_same_output(documented: list[str], printed: list[str]) -> None:
    """Compare two outputs: equal words and digits, but for one unit of a number's last digit.

    Versions of numpy and of its linear algebra add in another order. Their estimates differ by
    less than one part in a million, which may round a printed number to the neighbouring one.
    """
    assert [NUMBER.sub("0", line).split() for line in documented] == [
        NUMBER.sub("0", line).split() for line in printed
    ]
    for documented_number, printed_number in zip(
        numbers(documented), numbers(printed), strict=True
    ):
        assert documented_number.as_tuple().exponent == printed_number.as_tuple().exponent
        assert abs(documented_number - printed_number) <= Decimal(
            (0, (1,), int(documented_number.as_tuple().exponent))
        )


def test_python_example_prints_the_output_below_it() -> None:
    """The front page shows the whole output of its five lines."""
    (program,) = front_page_blocks("python")
    (documented,) = (text for text in front_page_blocks("text") if "3 of 5 candidates" in text)
    assert_same_output(documented.splitlines(), run("-c", program).splitlines())


@pytest.mark.slow
def test_demo_output_is_what_the_demo_prints(tmp_path: Path) -> None:
    """The front page contains the table of the demo, shortened, and its picture."""
    (documented,) = (text for text in front_page_blocks("text") if "Of the 65 detected" in text)
    head, tail = documented.split("...\n")
    chart = tmp_path / "demo.svg"
    words = ("demo", "--seed", "1", "--chart", str(chart))
    printed = run("-c", "from rappor.cli import main; main()", *words).splitlines()
    n_head, n_tail = len(head.splitlines()), len(tail.splitlines())
    assert_same_output(head.splitlines(), printed[:n_head])
    assert_same_output(tail.splitlines(), printed[-n_tail:])
    pictures = (ROOT / ".github" / "pictures" / "demo.svg", chart)
    published, drawn = (
        re.sub(r"[\d.]+", "0", path.read_text(encoding="utf-8")) for path in pictures
    )
    assert published == drawn


@pytest.mark.parametrize("name", PROFILES)
def test_the_guarantee_is_what_the_library_computes(name: str) -> None:
    """The table has both losses, the largest beliefs, rounded up, and the share of named values.

    The share is measured, so it may differ by five standard errors.
    """
    (row,) = re.findall(rf"^\| `{name}` \| (.*) \|$", README, re.MULTILINE)
    epsilon_of_one, after_one, epsilon_of_all, after_all, named = row.split(" | ")
    params = Params.profile(name)
    assert epsilon_1(params) == pytest.approx(float(epsilon_of_one), abs=1e-4)
    assert epsilon_inf(params) == pytest.approx(float(epsilon_of_all), abs=1e-4)
    assert format_belief(posterior_bound(float(epsilon_of_one), 0.5)[1]) == after_one
    assert format_belief(posterior_bound(float(epsilon_of_all), 0.5)[1]) == after_all
    (learned,) = inference_attack(params, reports=(30,), devices=300, seed=1).memoized
    assert abs(learned.values - float(named.split()[0]) / 100) < 5 * learned.std_error + 0.005


def test_what_forced_bits_change_is_what_the_library_computes() -> None:
    """Asymmetric and symmetric permanent responses differ as the page states.

    Both have the same p*, q* and epsilon_inf. The ratio of their errors exceeds 1 above a share of
    16 %, so it is checked at 15 % and at 17 %.
    """
    page = (ROOT / "rappor" / "privacy" / "README.md").read_text(encoding="utf-8")
    both = Params.profile("balanced"), Params(k=128, m=128, f=0.238406, p=0.059601, q=0.559601)
    for params in both:
        assert (params.p_star, params.q_star) == pytest.approx(
            (both[0].p_star, both[0].q_star), rel=1e-5
        )
        assert epsilon_inf(params) == pytest.approx(4, abs=1e-4)
    losses = [", ".join(f"{epsilon_n(params, n):.2f}" for n in (2, 3)) for params in both]
    linked = [
        f"{100 * linkability(params, reports=(2,)).recognised[0].probability:.0f} %"
        for params in both
    ]
    shares = np.array([0, 0.15, 0.17, 0.5])
    asymmetric, symmetric = (
        CategoryNoise(params=params, n_reports=1, repeated=30).errors(shares) for params in both
    )
    rare, below, above, half = asymmetric / symmetric
    assert below < 1 < above
    assert f"after 2 and 3 reports | {losses[0]} | {losses[1]} |" in page
    assert f"among a million | {linked[0]} | {linked[1]} |" in page
    assert f"30 reports each | {half:.2f} | 1 |" in page
    assert f"with {rare:.2f} times the error" in page


def test_the_threat_model_is_what_the_library_computes() -> None:
    """The page has the beliefs after a report and after a quarter, and the nats of a year.

    The example is the profile balanced with quarters as epochs.
    """
    import datetime  # noqa: PLC0415  # only here

    page = (ROOT / "rappor" / "privacy" / "README.md").read_text(encoding="utf-8")
    params = Params.profile("balanced")
    metric = Metric(
        name="page",
        params=params,
        description="-",
        owner="-",
        expires=datetime.date(2030, 12, 31),
        epoch="quarter",
    )
    after_one = format_belief(posterior_bound(epsilon_1(params), 0.5)[1])
    quarter = format_belief(posterior_bound(epsilon_inf(params), 0.5)[1])
    assert f"| who sees one report | at most {after_one} sure from 50 % |" in page
    assert f"| who sees all reports of a quarter | at most {quarter} sure from 50 % |" in page
    assert f"| who sees all reports of a year | at most {reserve(metric).total:g} nats" in page


@pytest.mark.parametrize("name", ["strict", "balanced", "low-noise"])
def test_the_table_of_recognition_is_what_the_library_computes(name: str) -> None:
    """The page has the probabilities among a million devices, by sets of up to 46 reports.

    The largest sets are half of the daily reports of a quarter.
    """
    page = (ROOT / "rappor" / "privacy" / "README.md").read_text(encoding="utf-8")
    linked = linkability(Params.profile(name), reports=(1, 2, 5), most_reports=92)
    cells = [f"{100 * row.probability:.0f} %" for row in linked.recognised]
    assert [row.reports for row in linked.recognised] == [1, 2, 5, 46]
    assert f"| {name} | {' | '.join(cells)} | {linked.permanent_bits:.0f} bits |" in page
    assert f"{linked.cohort_devices:,} of the million devices are in the cohort" in page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_exist(path: Path) -> None:
    """Every relative link names an existing file or folder, and an existing heading of the file."""
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", read_prose(path)):
        if not target.startswith(("http://", "https://")):
            page = path.parent / target if target else path
            assert page.exists(), target
            assert not anchor or anchor in list_anchors(page), f"{target}#{anchor}"


def read_prose(path: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def list_anchors(path: Path) -> set[str]:
    """Return the anchors of a page: its headings in the form of links, and its named anchors."""
    text = read_prose(path)
    headings = re.findall(r"^ *#+ (.*)$", text, flags=re.MULTILINE)
    named = set(re.findall(r'<a id="([^"]+)">', text))
    return named | {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in headings}


def test_every_package_has_its_page() -> None:
    """Each folder of the first level, and each package of the library, has a README.md."""
    for folder in ("client", "server", "tests", "benchmarks", "rappor"):
        assert (ROOT / folder / "README.md").exists()
    for package in (ROOT / "rappor").iterdir():
        if (package / "__init__.py").exists():
            assert (package / "README.md").exists(), package.name


def test_the_front_page_shows_examples_before_explanations() -> None:
    """The example and the demo precede the guarantee, which explains words of their output."""
    assert re.findall(r"^## (.*)$", README, re.MULTILINE) == [
        "Install",
        "Five lines",
        "Demo",
        "What is guaranteed",
        "Where to start",
        "How mature it is",
    ]


@pytest.mark.acceptance
def test_the_reference_has_every_public_name(tmp_path: Path) -> None:
    """The command of CONTRIBUTING writes a page with every public name of each package."""
    page = (ROOT / ".github" / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (packages,) = re.findall(r"`pdoc (.*?)`", page)
    run("-W", "ignore", "-m", "pdoc", *packages.split(), "-o", str(tmp_path))
    for package in packages.split():
        written = (tmp_path / f"{package.replace('.', '/')}.html").read_text(encoding="utf-8")
        for name in importlib.import_module(package).__all__:
            assert f'id="{name}"' in written, f"{package}.{name}"


def test_test_command_is_the_one_that_ci_runs() -> None:
    """Exactly one line of the README is the test command, and CI reads it from there."""
    commands = [line for line in README.splitlines() if re.match(r"python3 -m venv .*pytest", line)]
    assert len(commands) == 1
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert 'grep -E "^python3 -m venv .*pytest" README.md' in script

"""The command line: its contracts for scripts, its exit codes, and what it says to bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rappor import Counts, Params, Registry, Upload
from rappor.cli.app import cli, run
from rappor.encode import encode_value

SECRET = "07" * 32

REGISTRY = """
[budget]
total = inf
[metrics.engine]
description = "Where a typed query goes"
owner = "search@example.org"
expires = 2999-12-31
epoch = "life"
interval = "none"
encoding = "bloom"
profile = "balanced"

[metrics.engine_strict]
description = "The same with a minimum and candidates"
owner = "search@example.org"
expires = 2999-12-31
epoch = "life"
interval = "none"
encoding = "bloom"
profile = "strict"
candidates = "engines.txt"
min_reports = 5_000

[metrics.theme]
description = "Light or dark"
owner = "design@example.org"
expires = 2999-12-31
interval = "none"
encoding = "onehot"
categories = ["light", "dark", "other"]
profile = "strict"
epoch = "quarter"

[metrics.add_ons]
description = "What is switched on"
owner = "design@example.org"
expires = 2999-12-31
epoch = "life"
interval = "none"
encoding = "flags"
categories = ["spell", "sync"]
profile = "accurate"

[metrics.old]
description = "No longer"
owner = "search@example.org"
expires = 2020-01-01
epoch = "life"
interval = "none"
encoding = "boolean"
f = 0.5
p = 0.25
q = 0.75
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a registry, a population and candidates."""
    (tmp_path / "metrics.toml").write_text(REGISTRY)
    (tmp_path / "population.csv").write_text("value,weight\nduckduckgo,5\nqwant,3\nother,2\n")
    (tmp_path / "engines.txt").write_text("bing\nduckduckgo\nqwant\n")
    return tmp_path


class Shell:
    """Runs commands against one folder and keeps what they print."""

    def __init__(self, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
        """Remember where and with what to listen."""
        self.place = place
        self._capfd = capfd

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Run one command; words that name a file of the folder become its path."""
        known = {path.name: str(path) for path in self.place.iterdir()}
        words = [known.get(word, word) for word in arguments]
        code = run(words)
        out, err = self._capfd.readouterr()
        return code, out, err

    def metric(self, command: str, *arguments: str, name: str = "engine") -> tuple[int, str, str]:
        """Run a command of one metric."""
        return self(command, *arguments, "--registry", "metrics.toml", "--metric", name)

    def path(self, name: str) -> str:
        """Name a file that a command shall write."""
        return str(self.place / name)


@pytest.fixture
def shell(place: Path, capfd: pytest.CaptureFixture[str]) -> Shell:
    """A shell in the folder."""
    return Shell(place, capfd)


@pytest.fixture
def counts(shell: Shell) -> str:
    """Counts of 50,000 devices."""
    name = shell.path("engine.counts")
    simulated = ("--population", "population.csv", "--reports", "50000", "--seed", "3")
    assert shell.metric("simulate", *simulated, "--out", name)[0] == 0
    return name


def test_every_command_has_help(shell: Shell) -> None:
    """Each command explains itself and ends with 0."""
    for name in ("", *cli.commands):
        code, out, _ = shell(*filter(None, [name]), "--help")
        assert code == 0
        assert out.startswith(f"Usage: rappor {name}".rstrip())


def test_usage_errors_end_with_2(shell: Shell) -> None:
    """An unknown command, an unknown option and a missing one are usage errors."""
    for words in (["nothing"], ["demo", "--nothing"], ["decode"], ["encode", "engine", "x"]):
        code, out, err = shell(*words)
        assert code == 2
        assert not out
        assert "Usage:" in err


def test_completion_prints_a_script(shell: Shell) -> None:
    """Each shell gets a script that names the program."""
    for name in ("bash", "zsh", "fish"):
        code, out, _ = shell("completion", name)
        assert code == 0
        assert "_RAPPOR_COMPLETE" in out


def test_collects_describes_every_metric(shell: Shell) -> None:
    """The plain words name each metric, its owner and that one has expired."""
    code, out, _ = shell("collects", "--registry", "metrics.toml")
    assert code == 0
    assert all(name in out for name in ("engine", "theme", "design@example.org", "2020-01-01"))
    assert "expired" in out


def test_collects_of_an_unknown_metric_names_the_nearest(shell: Shell) -> None:
    """A misspelt name gets a suggestion."""
    code, _, err = shell("collects", "them", "--registry", "metrics.toml")
    assert code == 2
    assert "theme" in err


def encode(shell: Shell, *words: str) -> Any:
    code, out, err = shell("encode", *words, "--registry", "metrics.toml", "--json")
    assert code == 0, err
    return json.loads(out)


def test_encode_contract(shell: Shell, place: Path) -> None:
    """The JSON has the contract's keys; bits come first bit first; only the report is fresh."""
    first = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert list(first) == ["metric", "params", "cohort", "bits", "permanent", "report"]
    metric = Registry.load(place / "metrics.toml").metric("engine")
    expected = encode_value(bytes.fromhex(SECRET), metric, "qwant")
    number = int.from_bytes(expected.bits, "little")
    assert first["bits"] == "".join(str(number >> i & 1) for i in range(128))
    assert first["cohort"] == expected.cohort
    assert first["params"] == metric.fingerprint
    again = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert again["permanent"] == first["permanent"]
    assert again["report"] != first["report"]  # equal with chance 2^-60 at most


def test_encode_reads_a_secret_file(shell: Shell, place: Path) -> None:
    """A file of 32 bytes serves as the secret; one of 31 is refused unseen."""
    (place / "secret").write_bytes(bytes.fromhex(SECRET))
    (place / "short").write_bytes(b"S" * 31)
    by_file = encode(shell, "engine", "qwant", "--secret-file", "secret")
    by_hex = encode(shell, "engine", "qwant", "--secret-hex", SECRET)
    assert by_file["permanent"] == by_hex["permanent"]
    words = ("encode", "engine", "qwant", "--registry", "metrics.toml", "--secret-file", "short")
    code, _, err = shell(*words)
    assert code == 2
    assert "SSS" not in err


def test_encode_takes_flags_and_epochs(shell: Shell) -> None:
    """Flags are joined by commas; another epoch draws another permanent response."""
    assert encode(shell, "add_ons", "sync,spell")["bits"] == "11"
    assert encode(shell, "add_ons", "")["bits"] == "00"
    seen = {
        encode(shell, "theme", "dark", "--secret-hex", SECRET, "--epoch", f"{year}-Q1")["permanent"]
        for year in range(2000, 2060)
    }
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("old", "true"), "expired"),
        (("theme", "secretcolour"), "one of"),
        (("theme", "dark", "--epoch", "2026"), "quarter"),
        (("engine", "x", "--epoch", "2026"), "epoch"),
        (("engine", "x", "--secret-hex", "zz"), "hex digits"),
        (("engine", "x", "--secret-hex", "07"), "32 bytes"),
        (("engine", "x", "--secret-hex", SECRET, "--secret-file", "metrics.toml"), "not both"),
        (("engine", "x", "--secret-file", "missing"), "missing"),
        (("nothing", "x"), "nothing"),
    ],
)
def test_encode_refuses(shell: Shell, words: tuple[str, ...], reason: str) -> None:
    """What cannot be encoded gets one sentence, exit code 2, and the value is not repeated."""
    code, out, err = shell("encode", *words, "--registry", "metrics.toml")
    assert code == 2
    assert not out
    assert reason in err
    assert "secretcolour" not in err


def test_decode_contract(shell: Shell, counts: str) -> None:
    """The JSON object has the contract's keys, rows sorted by count, detected ones adjusted."""
    code, out, _ = shell.metric("decode", counts, "--candidates", "engines.txt", "--json", "--all")
    assert code == 0
    answer = json.loads(out)
    assert list(answer) == ["estimates", "reports", "unallocated", "diagnostics"]
    assert answer["reports"] == 50_000
    rows = answer["estimates"]
    plain = ["candidate", "count", "std_error", "proportion", "ci_low", "ci_high"]
    plain += ["p_value", "detected"]
    assert [row["candidate"] for row in rows] == ["duckduckgo", "qwant", "bing"]
    assert [list(row) for row in rows] == [
        [*plain, "ci_low_adjusted", "ci_high_adjusted", "forged_to_make", "forged_to_hide"],
        [*plain, "ci_low_adjusted", "ci_high_adjusted", "forged_to_make", "forged_to_hide"],
        plain,
    ]
    assert rows[0]["count"] == pytest.approx(rows[0]["proportion"] * 50_000)
    assert answer["unallocated"] == pytest.approx(1 - rows[0]["proportion"] - rows[1]["proportion"])
    # Six standard errors: missed with chance 2e-9 under the normal law of the estimate.
    assert abs(rows[0]["count"] - 25_000) < 6 * rows[0]["std_error"]


def test_decode_lists_the_detected_unless_asked_for_all(shell: Shell, counts: str) -> None:
    """Without --all the undetected candidate is left out, in JSON, CSV and table alike."""
    words = ("decode", counts, "--candidates", "engines.txt", "--csv", shell.path("rows.csv"))
    code, out, _ = shell.metric(*words)
    assert code == 0
    assert "bing" not in out
    assert "2 of 3 candidates detected in 50,000 reports" in out
    assert (shell.place / "rows.csv").read_text().count("\n") == 3


def test_decode_takes_level_correction_confidence_and_distribution(
    shell: Shell, counts: str
) -> None:
    """Options change what they say: stricter detection, wider intervals, shares."""
    words = ("decode", counts, "--candidates", "engines.txt", "--json", "--all")
    plain = json.loads(shell.metric(*words)[1])["estimates"][0]
    options = ("--level", "0.001", "--correction", "bonferroni", "--confidence", "0.99")
    strict = json.loads(shell.metric(*words, *options, "--distribution")[1])["estimates"][0]
    assert strict["ci_high"] - strict["ci_low"] == pytest.approx(
        (plain["ci_high"] - plain["ci_low"]) * 2.5758293 / 1.9599640
    )
    assert 0 < strict["share"] < 1


def test_decode_adds_files_of_one_set_and_joins_files_of_two(shell: Shell, counts: str) -> None:
    """Two files under one parameter set are added; one under another set is decoded along."""
    other, empty = shell.path("other.counts"), shell.path("empty.counts")
    words = ("--population", "population.csv", "--reports", "9000", "--out", other)
    assert shell.metric("simulate", *words, name="engine_strict")[0] == 0
    strict = Counts.load(other)
    Counts(strict.params, strict.ones, strict.reports, "engine").save(other)
    Counts.zero(Params.profile("accurate"), "engine").save(empty)
    files = (counts, counts, other, empty)
    answer = json.loads(shell.metric("decode", *files, "--candidates", "engines.txt", "--json")[1])
    assert answer["reports"] == 109_000
    assert len(answer["diagnostics"]["cohorts"]) == 2


def test_decode_reads_candidates_from_the_registry_and_keeps_the_minimum(shell: Shell) -> None:
    """Candidates lie beside the registry; under the minimum of reports nothing is released."""
    for n_reports, code in (("4999", 1), ("5000", 0)):
        name = shell.path(f"{n_reports}.counts")
        simulated = ("--population", "population.csv", "--reports", n_reports, "--out", name)
        assert shell.metric("simulate", *simulated, name="engine_strict")[0] == 0
        got, out, err = shell.metric("decode", name, "--json", name="engine_strict")
        assert got == code
        assert ("at least 5,000 reports" in err) == (code == 1)
        assert bool(out) == (code == 0)


def test_decode_of_categories_takes_no_candidates(shell: Shell) -> None:
    """A closed form answers for every category, and says so when given candidates."""
    (shell.place / "themes.csv").write_text("value,weight\nlight,3\ndark,1\n")
    name = shell.path("theme.counts")
    simulated = ("--population", "themes.csv", "--reports", "100000", "--seed", "1")
    assert shell.metric("simulate", *simulated, "--out", name, name="theme")[0] == 0
    answer = json.loads(shell.metric("decode", name, "--all", "--json", name="theme")[1])
    assert [row["candidate"] for row in answer["estimates"]] == ["light", "dark", "other"]
    code, _, err = shell.metric("decode", name, "--candidates", "engines.txt", name="theme")
    assert code == 2
    assert "must be left out" in err


def test_simulate_repeats_with_a_seed_and_differs_without(shell: Shell) -> None:
    """One seed gives one file; no seed gives another each time."""
    files = []
    for name, seed in (("a", ("--seed", "1")), ("b", ("--seed", "1")), ("c", ()), ("d", ())):
        path = shell.path(name)
        words = ("--population", "population.csv", "--reports", "1000", *seed, "--out", path)
        assert shell.metric("simulate", *words)[0] == 0
        files.append(Counts.load(path))
    assert files[0] == files[1]
    assert files[2] != files[3]  # equal with a chance below 1e-9: 16,384 binomials


def test_reports_in_parquet_aggregate_to_their_sums(shell: Shell) -> None:
    """Simulated reports, summed again, hold every report."""
    reports, out = shell.path("reports.parquet"), shell.path("sums.counts")
    words = ("--population", "population.csv", "--reports", "20000", "--seed", "5")
    assert shell.metric("simulate", *words, "--out", reports)[0] == 0
    code, printed, _ = shell.metric("aggregate", reports, "--out", out, "--json")
    assert code == 0
    assert json.loads(printed)["reports"] == 20_000
    assert Counts.load(out).n_reports == 20_000


def uploads(place: Path, n: int) -> list[bytes]:
    """Make n uploads of one report each."""
    metric = Registry.load(place / "metrics.toml").metric("engine")
    return [
        Upload(
            id=Upload.new_id(),
            reports=(encode_value(bytes([i]) * 32, metric, "qwant").report,),
        ).to_json()
        for i in range(n)
    ]


def test_aggregate_sums_uploads_and_tells_what_it_refused(shell: Shell) -> None:
    """Good uploads count once, a repeated one not again, junk is told with its line."""
    lines = uploads(shell.place, 5)
    body = b"\n".join([*lines, lines[0], b"junk \xff", b"{}"])
    (shell.place / "uploads.jsonl").write_bytes(body)
    out = shell.path("sums.counts")
    code, printed, _ = shell.metric("aggregate", "uploads.jsonl", "--out", out, "--json")
    assert code == 0
    answer = json.loads(printed)
    assert (answer["reports"], answer["repeated"]) == (5, 1)
    assert sorted(refusal["first_line"] for refusal in answer["refused"]) == [7, 8]
    code, printed, err = shell.metric("aggregate", "uploads.jsonl", "--out", out)
    assert code == 0
    assert "5 reports of engine" in printed
    assert "first on line 7" in err


def test_aggregate_of_nothing_writes_nothing(shell: Shell) -> None:
    """No acceptable report is no answer: exit code 1 and no file."""
    (shell.place / "junk.jsonl").write_bytes(b"\x00\xff\n")
    out = shell.place / "sums.counts"
    code, _, err = shell.metric("aggregate", "junk.jsonl", "--out", str(out))
    assert code == 1
    assert "at least 1 acceptable report" in err
    assert not out.exists()


def test_params_prints_what_was_promised(shell: Shell) -> None:
    """Losses, effective probabilities and limit of the paper's set, to the digits of FACTS."""
    words = ("-f", "0.5", "-p", "0.5", "-q", "0.75", "-h", "2", "-m", "16")
    answer = json.loads(shell("params", *words, "--json")[1])
    assert (answer["p_star"], answer["q_star"]) == (0.5625, 0.6875)
    assert round(answer["epsilon_1"], 4) == 1.0743
    assert round(answer["epsilon_inf"], 4) == 4.3944
    assert round(answer["std_error"]) == 2806
    code, out, _ = shell("params", "--profile", "strict")
    assert code == 0
    assert "1.0000 nats" in out


def test_params_without_noise_says_so(shell: Shell) -> None:
    """An infinite loss is null in JSON and words in the table."""
    words = ("params", "-f", "0", "-p", "0", "-q", "1")
    assert json.loads(shell(*words, "--json")[1])["epsilon_1"] is None
    assert "infinite" in shell(*words)[1]


BAD_COUNTS = {
    "missing.counts": None,
    "empty.counts": b"",
    "junk.counts": bytes(range(256)) * 20,
    "text.counts": b"cohort,reports,bit_0\n0,5,3\n",
}


@pytest.mark.parametrize("name", BAD_COUNTS)
def test_decode_refuses_what_is_not_counts(shell: Shell, name: str) -> None:
    """A missing, empty, binary or foreign counts file is named in one sentence, exit code 2."""
    content = BAD_COUNTS[name]
    if content is not None:
        (shell.place / name).write_bytes(content)
    code, out, err = shell.metric("decode", shell.path(name), "--candidates", "engines.txt")
    assert (code, out) == (2, "")
    assert name in err
    assert len(err.strip().splitlines()) == 1


def test_decode_refuses_another_version_and_a_cut_file(shell: Shell, counts: str) -> None:
    """A later version, a cut file and an extended one are refused."""
    data = Path(counts).read_bytes()
    first, rest = data.split(b"\n", 1)
    later = first.replace(b"1", b"9") + b"\n" + rest
    assert later != data
    for damaged in (later, data[:-1], data + b"x"):
        (shell.place / "damaged.counts").write_bytes(damaged)
        code, _, err = shell.metric("decode", "damaged.counts", "--candidates", "engines.txt")
        assert code == 2
        assert "damaged.counts" in err


def test_decode_refuses_counts_of_another_metric(shell: Shell, counts: str) -> None:
    """Counts name their metric, and another one's are not decoded as it."""
    for name in ("engine_strict", "theme"):
        words = () if name == "theme" else ("--candidates", "engines.txt")
        code, _, err = shell.metric("decode", counts, *words, name=name)
        assert code == 2
        assert "must be of" in err


def test_decode_of_no_reports_is_no_answer(shell: Shell) -> None:
    """Zero reports have no estimates: exit code 1."""
    metric = Registry.load(shell.place / "metrics.toml").metric("engine")
    Counts.zero(metric.params, "engine").save(shell.path("zero.counts"))
    code, out, err = shell.metric("decode", "zero.counts", "--candidates", "engines.txt", "--json")
    assert (code, out) == (1, "")
    assert "at least 1 report" in err


def test_decode_bears_an_empty_cohort(shell: Shell) -> None:
    """A cohort without reports is left out of the answer, not a division by zero."""
    params = Params.profile("balanced")
    reports = np.full(128, 1000)
    reports[7] = 0
    ones = np.full((128, 128), 150)
    ones[7] = 0
    Counts(params, ones, reports, "engine").save(shell.path("gap.counts"))
    code, out, _ = shell.metric("decode", "gap.counts", "--candidates", "engines.txt", "--json")
    assert code == 0
    assert json.loads(out)["diagnostics"]["cohorts"][0]["empty"] == 1


@pytest.mark.parametrize(
    ("content", "code", "reason"),
    [
        (b"", 1, "at least 1"),
        (b"\n\n \n", 1, "at least 1"),
        (b"good\n\xff\xfe\n", 2, "line 2"),
        (b"qwant\n", 0, ""),
        (b"x" * 1_000_000 + b"\nqwant\n", 0, ""),
    ],
)
def test_candidate_files(shell: Shell, counts: str, content: bytes, code: int, reason: str) -> None:
    """None is no answer, bad UTF-8 is told with its line, one will do, a long line is fine."""
    (shell.place / "asked.txt").write_bytes(content)
    got, _, err = shell.metric("decode", counts, "--candidates", "asked.txt", "--json")
    assert got == code
    assert reason in err


def test_skipped_candidates_are_told(shell: Shell, counts: str) -> None:
    """Blank lines and repeated candidates are counted on standard error."""
    (shell.place / "asked.txt").write_text("qwant\n\nqwant\n")
    _, _, err = shell.metric("decode", counts, "--candidates", "asked.txt")
    assert "1 blank lines and 1 repeated" in err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x01\xff",
        b"word,number\nx,1\n",
        b"value,weight\nx,nan\n",
        b"value,weight\nx,-1\n",
        b"value,weight\nx,inf\n",
        b"value,weight\nx,0\n",
        b"value,weight\nx\n",
        b"value,weight\nx,1\nx,2\n",
    ],
)
def test_simulate_refuses_bad_populations(shell: Shell, content: bytes) -> None:
    """Each fault of a population file gets one sentence, exit code 2, and no file is written."""
    (shell.place / "bad.csv").write_bytes(content)
    out = shell.place / "out.counts"
    words = ("--population", "bad.csv", "--reports", "10", "--out", str(out))
    code, _, err = shell.metric("simulate", *words)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert not out.exists()


def test_numbers_may_be_written_in_powers_of_ten(shell: Shell) -> None:
    """A billion devices are 1e9; a fraction and a word are usage errors."""
    words = ("--population", "population.csv", "--out", shell.path("x"), "--reports")
    assert shell.metric("simulate", *words, "1e9")[0] == 0
    assert Counts.load(shell.path("x")).n_reports == 10**9
    for bad in ("1.5", "many", "nan", "inf"):
        code, _, err = shell.metric("simulate", *words, bad)
        assert code == 2
        assert "whole number" in err


def test_simulate_refuses_a_negative_number(shell: Shell) -> None:
    """Fewer than no devices cannot report."""
    words = ("--population", "population.csv", "--reports", "-1", "--out", shell.path("x"))
    code, _, err = shell.metric("simulate", *words)
    assert code == 2
    assert "n_reports" in err


@pytest.mark.parametrize(
    "content", [None, b"", b"\xff\x00", b"metrics = 3", b"[metrics.x]\ncolour = 1", b"[metrics"]
)
def test_bad_registries(shell: Shell, content: bytes | None) -> None:
    """A missing, empty, binary, wrong or unclosed registry gets one sentence, exit code 2."""
    if content is not None:
        (shell.place / "bad.toml").write_bytes(content)
    code, out, err = shell("collects", "--registry", shell.path("bad.toml"))
    assert (code, out) == (2, "")
    assert err.startswith("rappor: ")
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(("option", "value"), [("--level", "nan"), ("--confidence", "1")])
def test_decode_refuses_levels_outside_their_range(
    shell: Shell, counts: str, option: str, value: str
) -> None:
    """NaN is in no range, and certainty has no interval."""
    words = ("decode", counts, "--candidates", "engines.txt", option, value)
    code, _, err = shell.metric(*words)
    assert code != 0
    assert option.removeprefix("--") in err


def test_writing_into_a_missing_folder_is_told(shell: Shell) -> None:
    """An output that cannot be written is named, exit code 2."""
    words = ("--population", "population.csv", "--reports", "10")
    code, _, err = shell.metric("simulate", *words, "--out", shell.path("no/such/x.counts"))
    assert code == 2
    assert "no/such" in err


def test_demo_on_own_values(shell: Shell) -> None:
    """Each line of a file is one device; the truth beside the estimate is exact."""
    (shell.place / "own.txt").write_text("cat\n" * 30_000 + "dog\n" * 20_000)
    (shell.place / "own.csv").write_text("value,count\ncat,30000\ndog,20000\n")
    for name in ("own.txt", "own.csv"):
        code, out, _ = shell("demo", "--values", name, "--seed", "1", "--json")
        assert code == 0
        rows = json.loads(out)["estimates"]
        assert [(row["candidate"], row["truth"]) for row in rows] == [
            ("cat", 30_000),
            ("dog", 20_000),
        ]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", 2),
        (b"\xff\xfe\x00", 2),
        (b"value,count\ncat,1.5\n", 2),
        (b"value,count\ncat,nan\n", 2),
    ],
)
def test_demo_refuses_bad_values(shell: Shell, content: bytes, code: int) -> None:
    """Empty, binary and fractional data get one sentence."""
    (shell.place / "own").write_bytes(content)
    got, out, err = shell("demo", "--values", "own")
    assert (got, out) == (code, "")
    assert len(err.strip().splitlines()) == 1


def test_light_commands_load_no_numpy() -> None:
    """Help, parameters and what is collected come without the scientific packages."""
    program = (
        "import sys\n"
        "from rappor.cli.app import run\n"
        "run(['params', '--profile', 'strict'])\n"
        "run(['decode', '--help'])\n"
        "assert not {'numpy', 'scipy', 'sklearn', 'numba'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_commands_without_the_analysts_packages_name_the_extra() -> None:
    """With the command line alone, light commands work and the others say what to install."""
    program = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from rappor.cli.app import run\n"
        "assert run(['params', '--profile', 'strict']) == 0\n"
        "sys.exit(run(['demo']))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "rappor[analysis]" in answer.stderr

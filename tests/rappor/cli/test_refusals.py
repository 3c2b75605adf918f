"""Refused command lines: usage errors and numbers outside their range."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import numpy as np
import pytest
from shell import REGISTRY, Shell, expect_refusal, write_inputs

from rappor import Counts, Registry

NO_PARAMS = "give METRIC and --registry, or --profile, or -f, -p and -q"
ONE_OF = "give only one of: a METRIC of a registry, a --profile, parameters"
MOST = "is more than 1,000,000,000,000,000"
STRICT = "--profile strict"
SIMULATE = "simulate engine --population population.csv --out x --registry metrics.toml"
DECODE = "decode week.counts --candidates engines.txt"
ENGINE = "--registry metrics.toml --metric engine"

REFUSED = {
    "zzz": "unknown command 'zzz'; see --help for all commands",
    "demmo": "unknown command 'demmo'; did you mean 'demo'?",
    "decode": "Usage: rappor decode",
    "encode engine x": "Missing option '--registry'",
    "decode x --candidtaes y": "'--candidates'",
    "privacy --jsn": "Did you mean '--json'?",
    "privacy --epsilon 3": "`rappor plan --epsilon-1 NATS",
    **{
        f"{command} --profile accurate": "got 'accurate': low-noise loses less"
        for command in ("privacy", "plan", "demo")
    },
    # which metric or parameters
    "audit": NO_PARAMS,
    "privacy": NO_PARAMS,
    "privacy theme": NO_PARAMS,
    "privacy --registry metrics.toml": NO_PARAMS,
    f"audit {STRICT} -k 8": ONE_OF,
    f"privacy theme {STRICT}": ONE_OF,
    f"privacy {STRICT} -f .3": ONE_OF,
    "privacy home --registry metrics.toml -f .3": ONE_OF,
    "privacy thme --registry metrics.toml": "'thme'; did you mean 'theme'?",
    "collects thme --registry metrics.toml": "'thme'; did you mean 'theme'?",
    "collects theme --registry metrics.toml --json": "METRICS must be omitted with --json",
    "encode nothing x --registry metrics.toml": "unknown metric 'nothing'; expected one of",
    # numbers
    "privacy -f nan -p .2 -q .5": "f must be a number in [0, 1), got nan",
    "audit -f nan -p .2 -q .5": "f must be a number in [0, 1), got nan",
    f"privacy {STRICT} --shuffled 1e6 --delta nan": "delta must be a number in (0, 1), got nan",
    f"privacy {STRICT} --reports 5": "--reports goes with METRIC and --registry",
    f"privacy {STRICT} --values 2 --group 3": "--values, --group go with METRIC and",
    f"privacy {STRICT} --delta 1e-6": "--delta goes with --shuffled",
    f"privacy {STRICT} --reports 0": "'--reports': 0 is less than 1",
    f"privacy {STRICT} --group -1": "'--group': -1 is less than 1",
    f"privacy {STRICT} --devices 1e300": f"1e300 {MOST}",
    f"privacy {STRICT} --values 1e16": f"1e16 {MOST}",
    f"audit {STRICT} --trials 10": "trials must be an integer in [1,000, 1,000,000,000]",
    f"audit {STRICT} --reports 0": "--reports must be an integer in [1, 100], got 0",
    "trust --epsilon 0": "epsilon must be a number in (2^-30, 10], got 0.0",
    "trust --share 1.1": "share must be a number in [0, 1], got 1.1",
    "trust --devices 0": "0 is less than 1",
    "trust --devices 1.5": "'1.5' is not a whole number",
    "trust --delta 1": "delta must be a number in (0, 1), got 1.0",
    "trust --beta 0": "beta must be a number in (0, 1), got 0.0",
    "trust --beta 1e-12": "epsilon must be larger for 32-bit coins at beta = 1e-12",
    "trust --runs 1": "'--runs': 1 is less than 2",
    "trust --seed -1": "'--seed': -1 is less than 0",
    f"{SIMULATE} --reports many": "'many' is not a whole number",
    f"{SIMULATE} --devices 9 --days 2 --churn 1.5": "'--churn': 1.5 is not in the range",
    f"{SIMULATE} --devices 9 --days 367": "'--days': 367 is more than 366",
    # files
    f"privacy {STRICT} --chart a.pdf": "chart must end in .svg, .png, .html",
    f"privacy {STRICT} --chart nowhere/a.svg": "there is no folder nowhere",
    "privacy theme --registry metrics.toml --changed nope.toml": "nope.toml: No such file",
    f"privacy {STRICT} --shuffled 1e6 --counts none.counts": "none.counts: No such file",
    f"audit {STRICT} --values /no/such": "/no/such: No such file",
    "encode engine x --secret-file missing --registry metrics.toml": "missing: No such file",
    f"{DECODE} --html nowhere/report.html": "there is no folder nowhere",
    "discover week.counts --known engines.txt --list nothing.txt": "nothing.txt: No such file",
    "discover week.counts --list engines.txt": "give --known, a file of strings, one a line",
    "compare engines.txt --candidates engines.txt": "it is not a counts file",
    "trend engines.txt": "it is not a counts file",
    f"aggregate week.counts {ENGINE} --out y": "it has counts already: run rappor decode on",
    # what the files hold
    f"decode week.counts {ENGINE}_strict": "counts must be of engine_strict, got engine",
    "decode week.counts --registry metrics.toml --metric theme": "counts must be of theme",
    f"{DECODE} ./week.counts": "COUNTS must be different files",
    f"{DECODE} theme.counts": "counts must be of one metric, got engine, theme",
    "decode week.counts": "give --candidates, a file of strings, one a line, or --registry",
    "decode week.counts --registry metrics.toml": "one a line: the metric names none",
    "trend week.counts": "has no days: give --from",
    "discover week.counts --alphabet z-a": "z-a is no range",
    # what does not go together, or is not there
    "compare week.counts --candidates engines.txt": "give two or more COUNTS",
    "compare week.counts week.counts --candidates engines.txt": "COUNTS must be different files",
    "compare week.counts --by all --device-correlation 1": "must be omitted with --by",
    "publish weeks.json --candidates engines.txt --out site": "give --registry",
    f"privacy {STRICT} --counts week.counts": "--counts goes with --shuffled",
    f"privacy {STRICT} --changed metrics.toml": "--changed needs METRIC and --registry",
    f"audit {STRICT} --command ''": "a command must have at least one word",
    f"audit {STRICT} --command /no/such": "the command must start, got: /no/such",
    f"audit {STRICT} --secret-file-option x": "go with --command",
    f"audit {STRICT} --exact": "go with --command",
    f"audit {STRICT} --command x --client y": "give --client or --command, not both",
    f"audit {STRICT} --client x": "--client needs METRIC and --registry",
    f"audit {STRICT} --client x --values y": "--values must be omitted with --client",
    f"audit {STRICT} --client x --reports 3": "--reports must be omitted with --client",
    f"audit {STRICT} --command x --exact --reports 3": "--reports must be omitted with --exact",
    "convert week.counts --params x --out y --reports": "--reports needs a SOURCE that ends in",
    f"audit {STRICT} --command x --exact --secret-file-option y": "a question names the secret",
    "demo --values own.txt --reports 5": "--reports must be omitted: the file of --values says",
    "demo --values own.txt --small": "give either --small or --values",
    f"{DECODE} --sum ''": "or @ and the name of a file, got ''",
    f"{DECODE} --level 2": "--level must be a number in (0, 1), got 2.0",
    f"{DECODE} --sum '('": "--sum must be a regular expression",
    "discover week.counts --alphabet a-z": "got counts of a metric without parts",
    "demo --reports 0": "0 is less than 1",
    f"{DECODE} --sum @": "or @ and the name of a file, got '@'",
    f"{DECODE} --params x": "go with --format google",
    f"{DECODE} --map x": "go with --format google",
    f"{DECODE} --client cpp": "go with --format google",
    f"{DECODE} --format google --params x --registry metrics.toml": "--registry and --metric must",
    SIMULATE: "give either --reports or --devices",
    f"{SIMULATE} --reports 9 --devices 9": "give either --reports or --devices",
    f"{SIMULATE} --reports 9 --days 2": "give --devices",
    f"{SIMULATE} --devices 9 --days 2 --reports-per-device 2": "--reports-per-device or --days",
    f"{SIMULATE} --devices 9 --churn 0.5": "--churn needs --days",
    f"{SIMULATE} --devices 9 --days 2 --out x.parquet": "one report of each device",
    f"{SIMULATE} --reports 9 --segment country=de": "--segment must name a segment of engine",
    f"{SIMULATE} --reports 9 --segment country": "--segment must be NAME=VALUE, got 'country'",
    f"aggregate uploads.jsonl {ENGINE} --remote sc://localhost --out y": "needs --engine spark",
    # secrets and epochs
    "encode old true --registry metrics.toml": "expired on 2020-01-01",
    "encode theme dark --registry metrics.toml --epoch 2026": "must be a quarter as 2026-Q4",
    "encode engine x --registry metrics.toml --epoch 2026": "epoch must be empty, for life",
    "encode engine x --registry metrics.toml --secret-hex zz": "secret must be 64 hex digits",
    "encode engine x --registry metrics.toml --secret-hex 07": "secret must be exactly 32 bytes",
    "encode engine x --registry metrics.toml --secret-hex 07 --secret-file x": "not both",
    # plans
    f"plan --discover {STRICT} --reports 1e6": "needs --longest",
    f"plan --longest 6 {STRICT} --reports 1e6": "go with --discover",
    "plan --discover --longest 6 --reports 1e6": "needs --epsilon-1 and",
    f"plan --discover --longest 6 {STRICT} --share .1": "not --share",
    f"plan --discover --longest 6 {STRICT} --reports 1e7 --hashes 2": "give only the budget",
    f"plan --discover --longest 6 {STRICT} --reports 1e7 --chart x.svg": "without a chart",
    f"plan --discover --longest 6 {STRICT} --reports 1e7 --power .9": "--power must be omitted",
    f"plan --discover --longest 6 {STRICT} --reports 1e7 --cells 2x3": "--cells must be omitted",
    f"plan {STRICT} --reports 9 --listed-share .5": "--listed-share goes with --cells, or METRIC",
    "plan engine --registry metrics.toml --reports 9 --name x": "--name must be omitted",
    "datasheet --registry metrics.toml --paper dpia --out x": "--paper must be omitted with --out",
    f"plan {STRICT}": "give either --reports or --devices or --share",
    f"plan {STRICT} --reports 9 --share .1": "give either --reports or --devices or --share",
    f"plan {STRICT} --devices 9 --share .1": "give either --reports or --devices or --share",
    "plan --epsilon-1 1 --reports 9": "give --epsilon-1 and --epsilon-inf",
    f"plan --epsilon-1 2 --epsilon-inf 4 {STRICT} --reports 9": "a --profile is fixed",
    f"plan {STRICT} --reports 9 --zipf 1 --table x": "give --zipf or --table, not both",
    f"plan {STRICT} --reports 9 --table /nowhere": "/nowhere: No such file",
    f"plan {STRICT} --reports 9 --candidates 0": "candidates must be an integer in",
    f"{SIMULATE} --devices -5": "-5 is less than 0",
    f"{DECODE} --devices 9 --reports-per-device 3": "either --devices or --reports-per-device",
    f"plan {STRICT} --reports 0": "reports must be an integer in",
    f"plan {STRICT} --reports 9 --name X": "name must match",
    f"plan {STRICT} --devices 9 --days 3 --reports-per-device 3": "either --reports-per-device",
    f"plan {STRICT} --devices 9 --write": "--write needs METRIC and --registry",
    f"plan {STRICT} --devices 9 a": "METRIC and --registry go together",
    f"plan {STRICT} --devices 9 --encoding boolean --candidates 3": "are the 1 categories",
    f"plan {STRICT} --devices 9 --encoding onehot": "encoding onehot needs --categories",
    f"plan {STRICT} --devices 9 --encoding set": "must be once for encoding set",
    f"plan {STRICT} --devices 9 --items 8": "encoding bloom has no --items",
    "plan --profile once --devices 9 --encoding set --items 65": "65 is more than 64",
    "plan --epsilon-1 2 --epsilon-inf 4 --devices 9 --encoding set": "must equal --epsilon-1 for",
    "plan --epsilon-1 2 --epsilon-inf 2 --devices 9 --encoding set --hashes 1": "do not go with",
    f"plan {STRICT} --devices 9 --categories a,b": "encoding bloom has no --categories",
    f"plan {STRICT} --devices 9 --encoding onehot --categories a,a": "categories must be distinct",
    "plan --epsilon-1 2 --epsilon-inf 4 --devices 9 --encoding boolean --max-bytes 3": "go with",
    "plan --profile once --devices 9 --epoch life": "--epoch must be year, quarter or month",
    "plan --profile once --devices 9 --interval day": "--interval must be epoch if epsilon_1",
    "plan --profile once --devices 9 --reports-per-device 5": "--reports-per-device must be 1",
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files that the command lines name. No command line changes it."""
    folder = tmp_path_factory.mktemp("refusals")
    write_inputs(folder)
    registry = Registry.loads(REGISTRY)
    engine, theme = registry["engine"].params, registry["theme"].params
    bit_counts = np.full((engine.m, engine.k), 50)
    Counts(engine, bit_counts, np.full(engine.m, 100), "engine").save(folder / "week.counts")
    Counts(theme, [[40, 40, 40]], [100], "theme").save(folder / "theme.counts")
    (folder / "own.txt").write_text("cat\ndog\n")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("words", REFUSED)
def test_a_refused_command_line_gets_one_sentence(
    inputs: Path, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    """A refused command line gives exit code 2 and one sentence, and writes no file."""
    shell = Shell(inputs, capfd)
    before = set(inputs.iterdir())
    with contextlib.chdir(inputs):
        assert REFUSED[words] in expect_refusal(shell(*shlex.split(words)))
    assert set(inputs.iterdir()) == before


@pytest.mark.parametrize("share", ["1e-12", "1e-300"])
def test_a_share_that_is_never_detected_has_no_plan(shell: Shell, share: str) -> None:
    """A share that no number of reports detects gives exit code 1."""
    message = expect_refusal(shell("plan", "--profile", "strict", "--share", share), 1)
    assert "share must be larger" in message

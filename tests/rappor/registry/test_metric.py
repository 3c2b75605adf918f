"""Metrics and registries: every key of an entry, and every mistake in an entry.

A message about a mistake has the metric, the key, the constraint and the refused value, so that the
author of the registry can mend the entry without reading the documentation.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from pathlib import Path
from typing import Any

import pytest
from registries import build_metric

from rappor.base.errors import FileError, MetricError
from rappor.protocol.loss import epsilon_1
from rappor.protocol.params import Params
from rappor.protocol.parts import Part
from rappor.protocol.segments import Dimension
from rappor.registry.budget import scope_cost
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

DAY = datetime.date(2026, 11, 30)
PARAMS = Params(k=8, h=2, m=4, f=0.5, p=0.25, q=0.75)

BUDGET = "[budget]\ntotal = inf\n"

# Parts of entries as TOML. Each test adds keys to them or replaces a value.
HEAD = 'description = "What it is"\nowner = "team"\nexpires = 2026-11-30\nepoch = "life"\n'
NOISE = "f = 0.5\np = 0.25\nq = 0.75\n"
BLOOM = f'{HEAD}encoding = "bloom"\nk = 8\nh = 2\nm = 4\n{NOISE}'
ONEHOT = f'{HEAD}encoding = "onehot"\nprofile = "strict"\n'
BUCKETS = f'{HEAD}encoding = "buckets"\nprofile = "strict"\n'
HEAD_OF_QUARTER = HEAD.replace('"life"', '"quarter"')
ONCE = 'encoding = "onehot"\nprofile = "once"\ninterval = "epoch"'
SET = HEAD_OF_QUARTER + 'encoding = "set"\ninterval = "epoch"\n'


def make_metric(**changes: Any) -> Metric:
    """Return the metric of the entry `BLOOM`, with some changed fields."""
    fields: dict[str, Any] = {"description": "What it is", "owner": "team", "expires": DAY}
    return build_metric(**{"params": PARAMS} | fields | changes)


def load_metric(body: str, name: str = "page") -> Metric:
    """Load a registry of one metric, and return the metric."""
    return Registry.loads(f"{BUDGET}[metrics.{name}]\n{body}").metric(name.strip('"'))


def add_calendar(params: Params, metric: Metric) -> Params:
    """Return parameters with the interval and epoch of a metric, as its reports have them."""
    return dataclasses.replace(params, interval=metric.interval, epoch=metric.epoch)


def test_an_entry_of_explicit_letters() -> None:
    """Every key of an entry sets its field of the metric, and missing keys have defaults.

    An entry has either all letters of the parameters, or a profile, which sets all letters. Equal
    metrics have equal hashes.
    """
    metric = load_metric(BLOOM)
    assert metric == make_metric()
    assert (metric.epoch, metric.interval) == ("life", "day")
    assert (metric.candidates, metric.min_reports, metric.min_cohort) == (None, 100, 10)
    assert (metric.parts, metric.sampling_rate) == ((), 1.0)
    assert metric.params == add_calendar(PARAMS, metric)
    assert len({metric, make_metric(), make_metric(name="theme")}) == 2
    assert load_metric(BLOOM.replace("h = 2\nm = 4\n", "")).params.m == 1
    strict = load_metric(f'{HEAD}encoding = "bloom"\nprofile = "strict"')
    assert strict.params == add_calendar(Params.profile("strict"), strict)


def test_an_entry_with_everything() -> None:
    """All optional keys of an entry set their fields of the metric."""
    body = BLOOM.replace("2026-11-30", '"2026-11-30"').replace('"life"', '"quarter"') + (
        'interval = "week"\nnormalize = "strip"\ncandidates = "pages.txt"\n'
        "min_reports = 1000\nmin_cohort = 20\ninsecure = true\n"
        'durable = true\nretention = "2 years"\n'
        'parts = [{name = "prefix:2", share = 0.5}, {name = "whole"}]\nsampling_rate = 0.1\n'
    )
    assert load_metric(
        body.replace("f = 0.5", "f = 0").replace("p = 0.25", "p = 0")
    ) == make_metric(
        params=Params(k=8, h=2, m=4, f=0, p=0, q=0.75, normalize="strip", insecure=True),
        epoch="quarter",
        interval="week",
        parts=(Part("prefix:2", 0.5), Part("whole")),
        sampling_rate=0.1,
        candidates="pages.txt",
        min_reports=1000,
        min_cohort=20,
        durable=True,
        retention="2 years",
    )


def test_an_entry_may_rank_its_candidates() -> None:
    """`ranked` says that candidates are in the order of their expected shares.

    Only analysts use the order. The fingerprint does not depend on it, so devices go on as before.
    """
    metric = load_metric(BLOOM + 'candidates = ["vim", "emacs"]\nranked = true')
    assert metric.ranked
    assert not load_metric(BLOOM).ranked
    assert metric.fingerprint == load_metric(BLOOM).fingerprint


def test_an_entry_may_list_its_candidates() -> None:
    """An entry may list its candidates, which only analysts use.

    No fingerprint depends on the candidates, so a list may change while devices collect.
    """
    metric = load_metric(BLOOM + 'candidates = ["vim", "emacs"]')
    assert metric.listed == metric.candidates == ("vim", "emacs")
    assert metric == make_metric(candidates=("vim", "emacs"))
    assert (make_metric().listed, make_metric(candidates="pages.txt").listed) == ((), ())
    assert metric.accepted.keys() == make_metric().accepted.keys()


@pytest.mark.parametrize("cohorts", [1, 8, 65536])
def test_strings_of_a_profile_may_have_other_cohorts(cohorts: int) -> None:
    """A metric of strings with a profile may have another number of cohorts.

    All other parameters are the profile's, and therefore both losses.
    """
    head = f'{HEAD}encoding = "bloom"\nprofile = "balanced"\n'
    plain = Params.profile("balanced")
    metric = load_metric(f"{head}m = {cohorts}")
    assert metric.params == add_calendar(dataclasses.replace(plain, m=cohorts), metric)
    assert load_metric(head).params == add_calendar(plain, metric)


@pytest.mark.parametrize(
    ("entry", "k", "names"),
    [
        ('encoding = "onehot"\ncategories = ["a", "b", "c"]', 3, ("a", "b", "c")),
        ('encoding = "buckets"\nedges = [-0.5, 10, 1e21]', 4, ("-0.5", "10", "1e+21")),
        ('encoding = "boolean"', 1, ()),
    ],
)
@pytest.mark.parametrize("noise", [NOISE, 'profile = "balanced"\n'])
@pytest.mark.parametrize("has_k", [False, True])
def test_other_encodings_imply_k(
    entry: str, k: int, names: tuple[str, ...], noise: str, has_k: bool
) -> None:
    """Categories and edges determine k. An entry may state k, and a wrong k is refused.

    That holds with explicit noise, and with a profile, which sets f, g, p and q.
    """
    metric = load_metric(f"{HEAD}{entry}\n{noise}" + (f"k = {k}\n" if has_k else ""))
    params = metric.params
    assert (params.k, params.h, params.m, params.categories) == (k, 1, 1, names)
    if noise == NOISE:
        assert (params.f, params.g, params.p, params.q) == (PARAMS.f, 0.5, PARAMS.p, PARAMS.q)
    else:
        expected = Params.profile("balanced", encoding=params.encoding, categories=names)
        assert params == add_calendar(expected, metric)
    with pytest.raises(MetricError, match=rf"metric 'page': k must be {k}.*, got {k + 1}"):
        load_metric(f"{HEAD}{entry}\n{noise}k = {k + 1}\n")


@pytest.mark.parametrize(
    ("keys", "k", "m", "items"),
    [
        ('profile = "once"', 464, 128, 8),
        ('profile = "once"\nitems = 1', 56, 128, 1),
        ('profile = "once"\nitems = 64\nm = 16', 2040, 16, 64),
        ("k = 24\nkeep = 0.5", 24, 1, 8),
        ("k = 24\nkeep = 0.5\nitems = 2\nm = 4", 24, 4, 2),
    ],
)
def test_an_entry_of_sets(keys: str, k: int, m: int, items: int) -> None:
    """An entry of sets has a profile, which sets k and `keep` for a number of items, or both keys.

    The number of cohorts, m, may stand beside a profile.
    """
    metric = load_metric(SET + keys)
    assert (metric.params.k, metric.params.m, metric.params.items) == (k, m, items)
    if "keep" in keys:
        assert metric.params.keep == 0.5
    else:
        expected = Params.profile("once", encoding="set", items=items)
        assert metric.params == add_calendar(dataclasses.replace(expected, m=m), metric)
    assert scope_cost(metric) == pytest.approx(epsilon_1(metric.params), abs=1e-3)


def test_categories_with_a_bucket_for_other_values() -> None:
    """With `keep`, categories and edges have a bucket for other values, so k is larger by one."""
    head = HEAD.replace('"life"', '"quarter"') + 'interval = "epoch"\nkeep = 0.9\n'
    for entry, k in (
        ('encoding = "onehot"\ncategories = ["a", "b", "c"]', 4),
        ('encoding = "buckets"\nedges = [0, 10]', 4),
    ):
        metric = load_metric(f"{head}{entry}\n")
        assert metric == load_metric(f"{head}{entry}\nk = {k}\n")
        assert (metric.params.k, metric.params.has_other_bucket) == (k, True)
        with pytest.raises(MetricError, match=f"k must be {k}, .*, got {k - 1}"):
            load_metric(f"{head}{entry}\nk = {k - 1}\n")


def test_an_entry_of_a_tuple_of_categories() -> None:
    """A table of categories makes a tuple: the combinations of the fields are the categories.

    Each field has a list and a normalizer. The order of the fields is part of the fingerprint.
    """
    table = 'categories = {editor = ["vim", "code"], system = ["linux", "mac"]}'
    for keys, k in (('encoding = "onehot"\nprofile = "balanced"', 4), (ONCE, 5)):
        params = load_metric(f"{HEAD_OF_QUARTER}{keys}\n{table}").params
        assert (params.k, params.field_names) == (k, ("editor", "system"))
        assert params.categories == (
            "vim\x1flinux",
            "vim\x1fmac",
            "code\x1flinux",
            "code\x1fmac",
        )
        assert params.field_categories == (("vim", "code"), ("linux", "mac"))
        turned = 'categories = {system = ["linux", "mac"], editor = ["vim", "code"]}'
        turned_params = load_metric(f"{HEAD_OF_QUARTER}{keys}\n{turned}").params
        assert turned_params.field_categories == (("linux", "mac"), ("vim", "code"))
        assert turned_params.fingerprint != params.fingerprint
        normalizers = 'normalize = {system = "casefold"}'
        folded = load_metric(f"{HEAD_OF_QUARTER}{keys}\n{table}\n{normalizers}").params
        assert folded.normalize == "none,casefold"
        without = load_metric(f'{HEAD_OF_QUARTER}{keys}\n{table}\nnormalize = {{system = "none"}}')
        assert without.params == params


def test_candidates_of_a_tuple_are_all_combinations() -> None:
    """Candidates of a tuple are all combinations of the lists, in the order of the fields.

    A list may be a file, which only the analyst has. Then the entry alone lists no combination.
    The entry also lists none if the lists have more than 10,000 combinations.
    """
    head = f'{HEAD_OF_QUARTER}encoding = "bloom"\nprofile = "balanced"\nfields = ["a", "b"]\n'
    metric = load_metric(head + 'candidates = {b = ["1", "2"], a = ["x", "y"]}')
    assert metric.listed == ("x\x1f1", "x\x1f2", "y\x1f1", "y\x1f2")
    assert load_metric(head + 'candidates = {a = ["x", "y"], b = "b.txt"}').listed == ()
    assert load_metric(head + 'candidates = "pairs.tsv"').candidates == "pairs.tsv"
    numbers = [str(i) for i in range(101)]
    assert load_metric(head + f"candidates = {{a = {numbers}, b = {numbers}}}").listed == ()


def test_an_entry_of_a_tuple_of_strings() -> None:
    """A tuple of strings costs as much as a string, and has another permanent fingerprint.

    A device sends one report of all fields together.
    """
    head = f'{HEAD_OF_QUARTER}encoding = "bloom"\nprofile = "balanced"\n'
    plain, metric = load_metric(head), load_metric(f'{head}fields = ["site", "country"]')
    assert metric.params == dataclasses.replace(plain.params, field_names=("site", "country"))
    assert (metric.params.categories, metric.params.field_categories) == ((), ())
    assert scope_cost(metric) == scope_cost(plain)
    assert metric.params.permanent_fingerprint != plain.params.permanent_fingerprint


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        *(
            (BLOOM.replace(f"{key} =", "#"), rf"{key} must be given")
            for key in ("description", "owner", "expires", "encoding", "epoch", "k", "f", "p", "q")
        ),
        (BLOOM.replace('"What it is"', '" "'), "description must be a non-empty text, got ' '"),
        (BLOOM.replace('"team"', '["a"]'), r"owner must be a non-empty text, got \['a'\]"),
        (BLOOM.replace("2026-11-30", '"soon"'), "expires must be a date as 2026-11-30, got 'soon'"),
        (
            BLOOM.replace("2026-11-30", "2026-11-30T00:00:00Z"),
            "expires must be a date as 2026-11-30, got datetime",
        ),
        (BLOOM.replace('"bloom"', '"b"'), "encoding must be one of bloom, onehot, .*, got 'b'"),
        (BLOOM.replace('"bloom"', '["a"]'), r"encoding must be one of .*, got \['a'\]"),
        (BLOOM.replace("k = 8", "k = 8.0"), r"k must be an integer in \[2, 2,040\], got 8.0"),
        (
            BLOOM.replace("f = 0.5", "f = 0").replace("p = 0.25", "p = 0"),
            "f g must be greater than 0 where p is 0.*; set insecure",
        ),
        (BLOOM + "insecure = 1", "insecure must be true or false, got 1"),
        (BLOOM + 'profile = "strict"', "k must be absent with a profile"),
        (ONEHOT + 'categories = ["a", "b"]\nq = 0.5', "q must be absent with a profile"),
        (f'{HEAD}encoding = "bloom"\nprofile = "lax"', "profile must be one of strict.*got 'lax'"),
        (SET, "k must be given, or a profile instead"),
        (SET + "k = 24", "keep must be given, or a profile instead"),
        (SET + 'profile = "balanced"', "profile must be once for encoding set, got 'balanced'"),
        (SET + 'profile = "once"\nk = 24', "k must be absent with a profile"),
        (SET + 'profile = "once"\nkeep = 0.5', "keep must be absent with a profile"),
        (SET + 'profile = "once"\nitems = 65', r"items must be an integer in \[1, 64\], got 65"),
        (SET + 'profile = "once"\nitems = "8"', r"items must be an integer in .*, got '8'"),
        (
            SET + 'profile = "once"\nparts = [{name = "prefix:2", share = 0.5}, {name = "whole"}]',
            "part must be absent for encoding set",
        ),
        (SET + 'profile = "once"\ncategories = ["a"]', "categories must be absent"),
        (SET + 'profile = "once"\ncomplete = true', "complete must be false unless"),
        (
            SET.replace('"epoch"', '"day"') + 'profile = "once"',
            "profile = 'once' needs interval = 'epoch'",
        ),
        (SET.replace('"epoch"', '"day"') + "k = 24\nkeep = 0.5", "keep needs interval = 'epoch'"),
        (
            SET.replace('"epoch"', '"week"') + "k = 24\nkeep = 0.5\ninsecure = true",
            "keep needs interval = 'epoch', got interval = 'week'",
        ),
        (
            SET.replace('"quarter"', '"life"') + 'profile = "once"',
            "interval = 'epoch' needs an epoch that ends",
        ),
        (SET + "k = 24\nkeep = 0.5\nh = 1", "h must be absent beside keep"),
        (SET + "k = 24\nkeep = 0.5\np = 0", "p must be absent beside keep"),
        (SET + "k = 24\nkeep = nan", r"keep must be a number in \(0, 1\), got nan"),
        (BLOOM + "keep = 0.5", "h must be absent beside keep"),
        (BLOOM + "items = 2", "items must be absent for encoding bloom, got 2"),
        *(
            (ONEHOT + f"categories = {table}", reason)
            for table, reason in (
                ('{a = ["x", "y"]}', r"fields must be a tuple of 2 to 8 names, got \('a',\)"),
                ("{}", "fields must be a tuple of 2 to 8 names"),
                ('{a = ["x", "y"], B = ["x", "y"]}', "the name of a field must match .*, got 'B'"),
                ('{a = ["x"], b = ["x", "y"]}', "categories of field a must number at least 2"),
                ('{a = "x", b = ["x", "y"]}', "categories of field a must be a list, got 'x'"),
                ('{a = ["x", 1], b = ["x", "y"]}', "categories must be a list of texts, got 1"),
                ('{a = ["x", ""], b = ["x", "y"]}', "categories must be non-empty and free of"),
                ('{a = ["x", "y\\u001fz"], b = ["x", "y"]}', "categories must be non-empty and fr"),
                ('{a = ["x", "x"], b = ["x", "y"]}', "categories must be distinct, got 'x | x' tw"),
                (
                    f"{{a = {[str(i) for i in range(100)]}, b = {[str(i) for i in range(21)]}}}",
                    "categories must have at most 2,040 combinations, got 2,100: shorten the lists",
                ),
                (
                    '{a = ["x", "y"], b = ["x", "y"]}\nnormalize = "casefold"',
                    "normalize must be a t",
                ),
                (
                    '{a = ["x", "X"], b = ["x", "y"]}\nnormalize = {a = "casefold"}',
                    r"categories must be distinct after normalising .*, got 'X \| x' again",
                ),
                (
                    '{a = ["x", " "], b = ["x", "y"]}\nnormalize = {a = "strip"}',
                    r"categories must be non-empty after normalising by strip,none, got '  \| x'",
                ),
                (
                    '{a = ["x", "y"], b = ["x", "y"]}\nnormalize = {c = "strip"}',
                    "normalize: unknown field 'c'",
                ),
                (
                    '{a = ["x", "y"], b = ["x", "y"]}\nnormalize = {a = "upper"}',
                    "normalize of field a must be one of none.*got 'upper'",
                ),
                (
                    '{a = ["x", "y"], b = ["x", "y"]}\nfields = ["a", "b"]',
                    "fields must be absent beside a table of categories",
                ),
            )
        ),
        (ONEHOT + 'categories = ["a", "b"]\nfields = ["a", "b"]', "fields must be absent for en"),
        (BUCKETS + "edges = {a = [1], b = [2]}", "edges must be a list, got"),
        (SET + 'profile = "once"\nfields = ["a", "b"]', "fields must be absent for encoding set$"),
        (BLOOM + 'fields = "ab"', "fields must be a list of names, got 'ab'"),
        (BLOOM + "fields = []", r"fields must be a list of names, got \[\]"),
        (BLOOM + 'fields = ["a"]', "fields must be a tuple of 2 to 8 names"),
        (
            BLOOM + f"fields = {[f'f{i}' for i in range(9)]}",
            "fields must be a tuple of 2 to 8 names",
        ),
        (BLOOM + 'fields = ["a", "a"]', "fields must have distinct names, got a, a"),
        (BLOOM + 'fields = ["a", 1]', "the name of a field must match .*, got 1"),
        (BLOOM + 'fields = ["a", ["b"]]', r"the name of a field must match .*, got \['b'\]"),
        (BLOOM + 'categories = {a = ["x", "y"], b = ["x", "y"]}', "categories must be absent for"),
        (
            BLOOM
            + 'fields = ["a", "b"]\nparts = [{name = "prefix:2", share = 0.5}, {name = "whole"}]',
            "part must be absent for a metric with fields",
        ),
        (BLOOM + 'normalize = "upper"', "normalize must be one of none.*got 'upper'"),
        (BLOOM + 'categories = ["a"]', "categories must be absent for encoding bloom"),
        (BLOOM + "edges = [1]", "edges must be absent for encoding bloom"),
        (ONEHOT, "categories must be a list, got nothing"),
        (ONEHOT + 'categories = "ab"', "categories must be a list, got 'ab'"),
        (ONEHOT + 'categories = ["a", 1]', "categories must be a list of texts, got 1"),
        (ONEHOT + 'categories = ["a", ""]', "categories must be non-empty"),
        (ONEHOT + "edges = [1]", "edges must be absent for encoding onehot"),
        (BUCKETS, "edges must be a list, got nothing"),
        (BUCKETS + 'edges = ["1"]', "edges must be a list of finite numbers, got '1'"),
        (BUCKETS + "edges = [true]", "edges must be a list of finite numbers, got True"),
        (BUCKETS + "edges = [inf]", "edges must be a list of finite numbers, got inf"),
        (BUCKETS + f"edges = [1{'0' * 400}]", "edges must be a list of finite numbers, got 10"),
        (BUCKETS + "edges = [1, 1.0]", "edges must be distinct, got '1' twice"),
        (
            BLOOM.replace('epoch = "life"\n', ""),
            'epoch must be given; add a line epoch = "quarter"',
        ),
        (BLOOM.replace('"life"', '"week"'), "epoch must be one of life, year, quarter, month, got"),
        (
            BLOOM + 'interval = "none"',
            "interval must not be 'none': write interval = \"day\", which reports one event of "
            "each day",
        ),
        (
            BLOOM + 'interval = "hour"',
            "interval must not be 'hour': write interval = \"day\", the shortest interval",
        ),
        (BLOOM + 'interval = "year"', "interval must be one of day, week, epoch, got 'year'"),
        *(
            (
                BLOOM + f"patterns = {number}",
                "patterns must be absent: a device reports one value in each epoch; "
                "for a value that changes, choose a shorter epoch",
            )
            for number in ("1", "2", "true")
        ),
        (BLOOM + 'parts = "whole"', "parts must be a list of {name = ..., share = ...}, got 'who"),
        (BLOOM + "parts = [{share = 1}]", "parts must be a list of {name = ..., share = ...}"),
        (
            BLOOM + 'parts = [{name = "prefix:2", size = 0.5}, {name = "whole"}]',
            "parts must be a list of {name = ..., share = ...}",
        ),
        (BLOOM + 'parts = [{name = "whole"}]', "parts must be one prefix or more, and then whole"),
        (
            BLOOM + 'parts = [{name = "prefix:0", share = 0.1}]',
            "parts: a part must be prefix:N with N in",
        ),
        (BLOOM + "ranked = true", "ranked must be false without candidates"),
        (BLOOM + 'candidates = "x.txt"\nranked = 1', "ranked must be true or false, got 1"),
        (BLOOM + "candidates = 3", "candidates must be a non-empty text, got 3"),
        (BLOOM + 'other = "discover"', "other must be absent: list the common values as candid"),
        (BLOOM + "other = 3", "other must be absent: list the common values as candidates"),
        (BLOOM + "candidates = []", "candidates must list at least 1 string, got none"),
        (BLOOM + 'candidates = ["a", 3]', "candidates must be a list of texts, got 3"),
        (BLOOM + 'candidates = ["a", ""]', "candidates must be non-empty and free of control"),
        (BLOOM + 'candidates = ["a\\nb"]', "candidates must be non-empty and free of control"),
        (BLOOM + 'candidates = ["a", "a"]', "candidates must be distinct after normalising by no"),
        (
            BLOOM + 'normalize = "casefold"\ncandidates = ["Vim", "VIM"]',
            "candidates must be distinct after normalising by casefold, got 'VIM'",
        ),
        (
            BLOOM + 'normalize = "strip"\ncandidates = ["  "]',
            "candidates must be non-empty after normalising by strip, got '  '",
        ),
        *(
            (BLOOM + f'fields = ["a", "b"]\ncandidates = {candidates}', reason)
            for candidates, reason in (
                (
                    '["x"]',
                    "candidates must be a table with a list or a file for each field, or a f",
                ),
                ("7", "candidates must be a non-empty text, got 7"),
                ('{a = ["x"]}', "candidates must be a table with exactly the fields a, b, got 'a'"),
                ('{a = ["x"], b = ["x"], c = ["x"]}', "candidates must be a table with exactly"),
                ('{a = ["x"], b = []}', "candidates of field b must list at least 1 string"),
                ('{a = ["x"], b = 7}', "candidates of field b must be a non-empty text, got 7"),
                (
                    '{a = ["x"], b = ["y\\u001f"]}',
                    "candidates of field b must be non-empty and free",
                ),
                (
                    '{a = ["x", "x"], b = ["y"]}',
                    "candidates of field a must be distinct after norm",
                ),
                (
                    '{a = ["x", "X"], b = ["y"]}\nnormalize = {a = "casefold"}',
                    "candidates of field a must be distinct after normalising by casefold, got 'X'",
                ),
            )
        ),
        (
            BLOOM + 'fields = ["a", "b"]\ncandidates = {a = ["x"], b = ["y"]}\nranked = true',
            "ranked must be false for a table of candidates, whose combinations have no order",
        ),
        (BLOOM + 'candidates = {a = ["x"]}', "candidates must be a list or a file, because the me"),
        (
            BLOOM + f"candidates = {[f'name {i}' for i in range(100_000)]}",
            "candidates must list at most 10,000 strings, got 100,000: write them into a file",
        ),
        (
            f'{HEAD}encoding = "boolean"\n{NOISE}candidates = ["true"]',
            "candidates must be absent for encoding boolean, whose values are all known",
        ),
        (
            f'{HEAD}encoding = "onehot"\ncategories = ["a", "b"]\n{NOISE}candidates = "a.txt"',
            "candidates must be absent for encoding onehot, whose values are all known",
        ),
        (
            f'{HEAD}encoding = "onehot"\ncategories = ["a", "b"]\nprofile = "strict"\nm = 2',
            "m must be 1 for encoding onehot, got 2",
        ),
        (f'{HEAD}encoding = "bloom"\nprofile = "strict"\nk = 8', "k must be absent with a profile"),
        (
            f'{HEAD}encoding = "flags"\ncategories = ["a", "b"]\nprofile = "strict"',
            "encoding must not be 'flags': use a metric of encoding boolean for each flag$",
        ),
        (BLOOM + "min_reports = -1", "min_reports must be an integer of at least 0, got -1"),
        *(
            (BLOOM + f"retention = {value}", 'retention must be a duration such as "2 years"')
            for value in ('"2"', '"0 days"', '"2 years "', '"1.5 years"', '"ever"', "2", "true")
        ),
        (BLOOM + 'retention = "13 days"', "retention must be at least 14 days with epoch = 'life'"),
        (
            BLOOM.replace('"life"', '"quarter"') + 'retention = "91 days"',
            "retention must be at least 92 days with epoch = 'quarter', got '91 days'",
        ),
        (BLOOM + "min_cohort = 0", "min_cohort must be an integer of at least 1, got 0"),
        (BLOOM + "complete = true", "complete must be false unless each value is in one"),
        (BLOOM + "complete = 1", "complete must be true or false, got 1"),
        *(
            (BLOOM + f"keep_reports = {value}", "keep_reports must be absent: .*server export")
            for value in ("true", "false", "1")
        ),
        (BLOOM + "durable = 1", "durable must be true or false, got 1"),
        (
            BLOOM + "sampling_rate = 0",
            r"sampling_rate must be a share of devices in \(0, 1\], got 0",
        ),
        (
            BLOOM + "sampling_rate = 1.5",
            r"sampling_rate must be a share of devices in \(0, 1\], got 1.5",
        ),
        (
            BLOOM + "sampling_rate = nan",
            r"sampling_rate must be a share of devices in \(0, 1\], got nan",
        ),
        (
            BLOOM + "sampling_rate = 1e-10",
            r"sampling_rate must be a share of devices in \(0, 1\], got 1e-10",
        ),
        (BLOOM + 'epoc = "year"', "unknown key 'epoc'; did you mean 'epoch'"),
        (BLOOM + "zzz = 1", "unknown key 'zzz'; expected one of description, owner, "),
    ],
)
def test_a_wrong_entry_is_refused_with_its_reason(body: str, reason: str) -> None:
    """A wrong entry is refused with one sentence: metric, key, constraint and refused value."""
    with pytest.raises(MetricError, match=f"^metric 'page': {reason}") as caught:
        load_metric(body)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a", "a.b", "a-b_c.9", "a" + "b" * 63])
def test_good_names_are_accepted(name: str) -> None:
    """A name has 1 to 64 lower-case letters, digits, dots, hyphens and underscores.

    In TOML, a name with a dot has to be quoted.
    """
    assert load_metric(BLOOM, name=f'"{name}"').name == name


@pytest.mark.parametrize("name", ["", "A", "1a", ".a", "a b", "ä", "a\\n", "a" * 65])
def test_bad_names_are_refused(name: str) -> None:
    """A name that does not match the pattern as a whole is refused.

    Names stand in addresses, file names and JSON without escaping.
    """
    with pytest.raises(MetricError, match=r"a metric's name must match \[a-z\].*, got"):
        load_metric(BLOOM, name=f'"{name}"')


def test_a_name_with_a_bare_dot_is_explained() -> None:
    """A name with a dot and without quotes is refused, and the message shows the quoted form.

    TOML reads such a name as a table in a table.
    """
    with pytest.raises(MetricError, match=r"metric 'a': b must not .* \[metrics.\"a.b\"\]"):
        Registry.loads(f"{BUDGET}[metrics.a.b]\n{BLOOM}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"r.toml: metrics must be at least one table \[metrics.NAME\]"),
        ("metrics = 3", r"r.toml: metrics must be at least one table \[metrics.NAME\], got 3"),
        ("[metrics]\na = 3", r"r.toml: metric 'a' must be a table \[metrics.NAME\], got 3"),
        (
            f"{BUDGET}[metrics.a]\n{BLOOM}min_reports = 'x'",
            "r.toml: metric 'a': min_reports must be an integer of at least 0, got 'x'",
        ),
        (
            f"{BUDGET}[metrics.a]\n{BLOOM}segments = {{version = [1]}}",
            "r.toml: metric 'a': segments: a dimension's value must be .*, got 1",
        ),
        (
            f"{BUDGET}[metrics.a]\n{BLOOM}parts = [{{name = 3}}]",
            "r.toml: metric 'a': parts: a part must be .*, got 3",
        ),
        ("[metric.a]\nx = 1", "r.toml: unknown key 'metric'; did you mean 'metrics'"),
        (
            f"[metrics.a]\n{BLOOM}[other]",
            "r.toml: unknown key 'other'; expected one of budget, metrics",
        ),
        ("[metrics.a]\n\n[metrics.a]\n", "r.toml, line 3: metric 'a' must be declared once"),
        ('[metrics."a.b"]\n[metrics."a.b"]', "r.toml, line 2: metric 'a.b' must be declared once"),
    ],
)
def test_a_wrong_registry_is_refused(text: str, reason: str) -> None:
    """A registry with wrong tables is refused. The message has the file, and the line if known."""
    with pytest.raises(MetricError, match=f"^{reason}"):
        Registry.loads(text, path="r.toml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nb = \n", 2),
        ("\n\n]", 3),
        ("[metrics.a]\nk = 1\nk = 2\n", 3),
        ("[metrics.a]\nk = ", 2),
        ("a = 1\nb = '''\n\n", 4),
    ],
)
def test_invalid_toml_is_refused_with_its_line(text: str, line: int) -> None:
    """A file that is not TOML is refused with the line of the mistake.

    If Python's reader of TOML reports only the end of the document, the line is the last line.
    """
    with pytest.raises(FileError, match=f"^r.toml, line {line}: it is not TOML: ") as caught:
        Registry.loads(text, path="r.toml")
    assert (caught.value.path, caught.value.line) == ("r.toml", line)


def test_a_registry_is_read_from_its_file(tmp_path: Path) -> None:
    """A file is read with any kind of line ends, and its metrics are in the order of the file."""
    path = tmp_path / "r.toml"
    path.write_text(f"{BUDGET}[metrics.b]\r\n{BLOOM}\r\n[metrics.a]\r\n{BLOOM}", encoding="utf-8")
    registry = Registry.load(path)
    assert list(registry) == ["b", "a"]
    assert registry["a"] == make_metric(name="a")
    assert len(registry) == 2
    assert repr(registry) == "Registry(['b', 'a'], total=inf)"


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A file that cannot be read is refused. The message has the path and the reason.

    If the file is not UTF-8, the message has the line of the wrong byte.
    """
    with pytest.raises(FileError, match=r"r.toml: it must be TOML of reasonable depth"):
        Registry.loads("a = " + "[" * 100_000, path="r.toml")
    with pytest.raises(FileError, match="nothing: No such file"):
        Registry.load(tmp_path / "nothing")
    with pytest.raises(FileError, match="Is a directory"):
        Registry.load(tmp_path)
    path = tmp_path / "r.toml"
    path.write_bytes(b"[metrics.a]\n# M\xfcller\n")
    with pytest.raises(FileError, match=r"r.toml, line 2: it is not UTF-8"):
        Registry.load(path)


def test_an_unknown_metric_is_refused_with_its_neighbours() -> None:
    """`metric()` refuses an unknown name with the similar names, or with all names."""
    registry = Registry([make_metric(name="home.page"), make_metric(name="search")], total=math.inf)
    assert registry.metric("search").name == "search"
    with pytest.raises(
        MetricError, match=r"unknown metric 'home_page'; did you mean 'home.page'\?"
    ):
        registry.metric("home_page")
    with pytest.raises(
        MetricError, match=r"unknown metric 'zzz'; expected one of home.page, search"
    ):
        registry.metric("zzz")


def test_an_unknown_key_has_similar_names() -> None:
    """`registry[name]` raises KeyError, as every mapping does, with the similar names.

    `in` and `get` raise nothing.
    """
    registry = Registry([make_metric(name="search")], total=math.inf)
    with pytest.raises(KeyError, match=r"unknown metric 'serch'; did you mean 'search'\?"):
        registry["serch"]
    with pytest.raises(KeyError, match="unknown metric 3; expected one of search"):
        registry[3]  # type: ignore[index]
    assert "serch" not in registry
    assert registry.get("serch") is None


def test_lookup_wants_metric_and_fingerprint() -> None:
    """`lookup` returns the parameters of a report from its metric and fingerprint, or None.

    A collector calls it for every report. Each part has a fingerprint of its own. With parts, no
    device reports under the fingerprint without a part, so the lookup does not know it.
    """
    plain = make_metric().params
    registry = Registry([make_metric()], total=math.inf)
    assert registry.lookup("page", plain.fingerprint) == plain
    assert registry.lookup("page", "0" * 16) is None
    assert registry.lookup("page", PARAMS.fingerprint) is None
    assert registry.lookup("pages", plain.fingerprint) is None
    metric = make_metric(parts=(Part("prefix:2", 0.5), Part("whole")))
    registry = Registry([metric], total=math.inf)
    for part in ("prefix:2", "whole"):
        params = dataclasses.replace(plain, part=part)
        assert metric.part_params(part) == params
        assert registry.lookup("page", params.fingerprint) == params
    assert registry.lookup("page", plain.fingerprint) is None
    assert list(make_metric().accepted) == [plain.fingerprint]


def test_a_metric_is_active_on_its_last_day() -> None:
    """A metric is active on the day `expires`, and expired on the next day."""
    make_metric().check_active(DAY)
    with pytest.raises(MetricError, match="metric 'page' expired on 2026-11-30"):
        make_metric().check_active(DAY + datetime.timedelta(days=1))


def test_metrics_made_by_a_program_are_checked() -> None:
    """Metrics and registries that a program makes, without a file, are checked in the same way."""
    with pytest.raises(MetricError, match="metric 'page' must be declared once"):
        Registry([make_metric(), make_metric()], total=math.inf)
    with pytest.raises(MetricError, match="metric 'page': params must be Params, got nothing"):
        make_metric(params=None)
    with pytest.raises(MetricError, match=r"a metric's name must match .*, got 3"):
        make_metric(name=3)
    with pytest.raises(MetricError, match="metric 'page': expires must be a date"):
        make_metric(expires=datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC))
    parts = (Part("prefix:2", 0.5), Part("whole"))
    with pytest.raises(MetricError, match="metric 'page': params must name no part beside parts"):
        make_metric(params=make_metric(parts=parts).part_params("whole"), parts=parts)


def test_the_largest_integer_is_exact_in_every_language() -> None:
    """An integer of an entry is at most 2^53 - 1. JavaScript rounds larger integers."""
    assert make_metric(min_reports=2**53 - 1).min_reports == 2**53 - 1
    with pytest.raises(MetricError, match="min_reports must be an integer of at most"):
        make_metric(min_reports=2**53)


@pytest.mark.parametrize(
    ("epoch", "day", "text"),
    [
        ("life", DAY, ""),
        ("year", DAY, "2026"),
        ("year", datetime.date(7, 1, 1), "0007"),
        ("month", DAY, "2026-11"),
        ("month", datetime.date(2026, 1, 31), "2026-01"),
        *(
            ("quarter", datetime.date(2026, month, 1), f"2026-Q{quarter}")
            for month, quarter in zip(
                range(1, 13), [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4], strict=True
            )
        ),
    ],
)
def test_epochs_of_days(epoch: str, day: datetime.date, text: str) -> None:
    """Every day belongs to one epoch, whose name `check_epoch` accepts."""
    metric = make_metric(epoch=epoch)
    assert metric.epoch_at(day) == text
    metric.check_epoch(text)


@pytest.mark.parametrize(
    ("epoch", "text", "form"),
    [
        ("life", "2026", "empty, for life"),
        ("year", "", "a year as 2026"),
        ("year", "2026-Q1", "a year as 2026"),
        ("year", "26", "a year as 2026"),
        ("year", "2026\n", "a year as 2026"),
        ("quarter", "2026-Q5", "a quarter as 2026-Q4"),
        ("quarter", "2026-Q0", "a quarter as 2026-Q4"),
        ("quarter", "2026-q1", "a quarter as 2026-Q4"),
        ("month", "2026-13", "a month as 2026-11"),
        ("month", "2026-00", "a month as 2026-11"),
        ("month", "2026-1", "a month as 2026-11"),
        ("month", "\u0662026-01", "a month as 2026-11"),
    ],
)
def test_other_epochs_are_refused(epoch: str, text: str, form: str) -> None:
    """The name of an epoch in another form is refused.

    Permanent noise depends on the name, so two names of one epoch would give a device two permanent
    responses in it.
    """
    with pytest.raises(MetricError, match=f"metric 'page': epoch must be {form}, got "):
        make_metric(epoch=epoch).check_epoch(text)


@pytest.mark.parametrize("epoch", [None, 2026, b""])
def test_a_name_of_an_epoch_is_a_text(epoch: Any) -> None:
    """An epoch of another type is refused like a text of another form."""
    with pytest.raises(MetricError, match="epoch must be empty, for life, got"):
        make_metric(epoch="life").check_epoch(epoch)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("parts", [Part("prefix:2", 0.5), Part("whole")]),
        ("parts", "whole"),
        ("parts", ("prefix:2", "whole")),
        ("segments", [Dimension("version", ("1", "2"))]),
        ("segments", (("version", ("1", "2")),)),
    ],
)
def test_parts_and_segments_are_tuples_of_their_classes(key: str, value: Any) -> None:
    """A list could not be hashed by the cache of accepted parameters."""
    with pytest.raises(MetricError, match=f"{key} must be a tuple of"):
        make_metric(**{key: value})


def test_the_registry_of_a_segment_has_the_reservations_of_the_registry() -> None:
    """Public properties cost no budget, and only the fingerprints change."""
    metric = make_metric(segments=(Dimension("version", ("1", "2")),))
    registry = Registry([metric], total=math.inf, today=DAY, program="editor")
    of_segment = registry.in_segment({"version": "1"})
    assert of_segment.reserved == registry.reserved
    assert of_segment.reserved[0].total > 0
    assert (of_segment.total, of_segment.program) == (math.inf, "editor")
    assert of_segment["page"].params.segment == (("version", "1"),)
    assert registry["page"].params.segment == ()

"""Parameters survive every conversion: each way to write and read parameters keeps all noise.

The four numbers of the noise are f, g, p and q. g was added to the three numbers of the paper, so
a conversion that was written before could lose it.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rappor import Counts, Metric, Params, ParamsError, Registry
from rappor.cli.examined_params import ExaminedParams
from rappor.cli.planning.plan_options import PlannedMetric
from rappor.google.files import write_params
from rappor.planning.entry import apply_numbers, replace_numbers, write_registry
from rappor.planning.noise import format_forced_probabilities, format_probability
from rappor.protocol.params import NOISE_LETTERS
from rappor.protocol.parts import Part
from rappor.protocol.profiles import PROFILES
from rappor.registry.sealed_json import format_sealed_json

ENCODINGS: dict[str, tuple[str, ...]] = {
    "bloom": (),
    "onehot": ("a", "b", "c"),
    "buckets": ("0", "10"),
    "boolean": (),
}
EXPIRES = datetime.date(2030, 12, 31)


def metric(params: Params) -> Metric:
    """Return a metric with the interval and the epoch of the parameters, or with usual ones."""
    return Metric(
        name="page",
        params=params,
        description="d",
        owner="o",
        expires=EXPIRES,
        epoch=params.epoch or "quarter",
        interval=params.interval or ("day" if params.has_instantaneous_noise else "epoch"),
    )


def entry(params: Params) -> str:
    """Write the registry of a metric with these parameters."""
    return write_registry(metric(params))


def of_profile(name: str, params: Params) -> str:
    """Write the entry with a profile in place of its numbers."""
    lines = [line for line in entry(params).split("\n") if line[:4] not in LETTERS]
    return "\n".join([*lines, f'profile = "{name}"'])


LETTERS = {f"{letter} = " for letter in "khmfgpq"} | {"keep", "item"}


def noise(params: Params) -> tuple[float, ...]:
    """Return f, g, p and q."""
    return tuple(getattr(params, letter) for letter in NOISE_LETTERS)


def read_decimals(params: Params) -> Params:
    """Read the shortest decimals of the parameters, as a person types them."""
    if params.keep is not None:
        return dataclasses.replace(params, keep=float(format_probability(params.keep)))
    f, g = map(float, format_forced_probabilities(params))
    p, q = float(format_probability(params.p)), float(format_probability(params.q))
    return dataclasses.replace(params, f=f, g=g, p=p, q=q)


def save_and_load(params: Params, folder: Path) -> Params:
    """Return the parameters of a counts file after saving and loading."""
    path = folder / "counts.json"
    Counts.zero(params, "page").save(path)
    return Counts.load(path).params


def read_sealed(params: Params) -> Params:
    """Return the parameters of the sealed registry, which devices in JavaScript load."""
    document = json.loads(format_sealed_json(Registry([metric(params)], total=1e9), {"page": "-"}))
    return Params.from_json(json.dumps(document["metrics"][0]["params"]))


def plan_profile(name: str, params: Params) -> Params:
    """Return the parameters that `rappor plan --profile` uses."""
    plan = PlannedMetric(
        encoding=params.encoding,
        categories=",".join(params.categories) or None,
        registry_path=None,
        metric_name=None,
        write=False,
    )
    return plan.make_profile_params(name)


def change_noise(params: Params) -> Params:
    """Return the same parameters with other noise of the same mechanism."""
    if params.keep is not None:
        return dataclasses.replace(params, keep=0.25)
    return dataclasses.replace(params, f=0.5, g=0.3)


def replace_in_entry(params: Params) -> Params:
    """Write the numbers into an entry that has other numbers, and read the entry."""
    changed_entry = entry(change_noise(params))
    text = changed_entry.replace("total = ", "total = inf  # ")
    return Registry.loads(replace_numbers(text, "page", params))["page"].params


def copy_calendar(params: Params, new_params: Params) -> Params:
    """Return parameters from outside a registry with the calendar of other parameters."""
    return dataclasses.replace(
        new_params, interval=params.interval, epoch=params.epoch, insecure=True
    )


WAYS: dict[str, Callable[[str, Params], Params]] = {
    "JSON": lambda _, params: Params.from_json(params.to_json()),
    "decimals": lambda _, params: read_decimals(params),
    "an entry": lambda _, params: Registry.loads(entry(params))["page"].params,
    "a profile": lambda name, params: Registry.loads(of_profile(name, params))["page"].params,
    "other numbers": lambda _, params: replace_in_entry(params),
    "a plan's": lambda _, params: apply_numbers(change_noise(params), params),
    "a plan": lambda name, params: copy_calendar(params, plan_profile(name, params)),
    "a segment": lambda _, params: params.with_segment((("version", "1"),)).without_segment,
    "sealed": lambda _, params: read_sealed(params),
    "examined": lambda _, params: copy_calendar(
        params, ExaminedParams(params=params).metric_or_placeholder.params
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", PROFILES)
def test_every_way_keeps_the_fingerprint(name: str, encoding: str, way: str) -> None:
    """A conversion keeps the fingerprint of the parameters, and therefore both losses."""
    params = metric(Params.profile(name, encoding=encoding, categories=ENCODINGS[encoding])).params
    built = WAYS[way](name, params)
    assert (built.fingerprint, built) == (params.fingerprint, params)


@pytest.mark.parametrize("name", PROFILES)
def test_files_keep_it(name: str, tmp_path: Path) -> None:
    """A counts file keeps the noise. Google's params.csv, which has no g, refuses another g."""
    params = Params.profile(name)
    assert save_and_load(params, tmp_path) == params
    with pytest.raises(ParamsError, match=r"g must be 0\.5 to be written as params\.csv, got 0\."):
        write_params(tmp_path / "params.csv", params)
    assert not (tmp_path / "params.csv").exists()


@pytest.mark.parametrize("name", PROFILES)
def test_parts_keep_the_noise(name: str) -> None:
    """The parameter sets of all parts of a metric have the noise of the metric."""
    whole = Params.profile(name)
    parts = dataclasses.replace(metric(whole), parts=(Part("prefix:3", 0.2), Part("whole")))
    assert {noise(part_set) for part_set in parts.part_sets} == {noise(whole)}

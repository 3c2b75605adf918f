"""What a command is about: a registry's metric, or parameters alone."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final

import click

from rappor.cli.options import (
    PROFILE_NAME,
    list_typed_options,
    metric_option,
    option_field,
    option_group,
    registry_option,
)
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_WAYS: Final = (
    {"registry_path", "metric_name", "metric_argument"},
    {"profile"},
    {"bits", "hashes", "cohorts", "f", "g", "p", "q"},
)
"""Options that say the same in different ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The parameters that a command is about, and their metric and registry if there are any."""

    params: Params
    metric: Metric | None = None
    registry: Registry | None = None
    registry_path: str | None = None

    @property
    def named(self) -> Metric:
        """The metric; one without a meaning stands for parameters alone."""
        return self.metric or Metric(
            name="any",
            params=self.params,
            description="-",
            owner="-",
            expires=datetime.date.max,
            epoch="life",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The options by which a subject is named."""

    metric_argument: str | None = None
    registry_path: str | None = registry_option(required=False)
    metric_name: str | None = metric_option()
    profile: str | None = option_field(
        PROFILE_NAME,
        "Named parameters; their epsilon_1 and epsilon_inf are 1 and 2 nats (strict), 2 and 4 "
        "(balanced), 4 and 6 (low-noise), 4 and 4 (once).",
    )
    bits: int = option_field("N", "Bits of a report.", type=int, default=128, flags="-k --bits")
    hashes: int = option_field(
        "N", "Hash functions; each sets one bit of a string.", type=int, default=1
    )
    cohorts: int = option_field(
        "N", "Cohorts; each has its own hash functions.", type=int, default=128
    )
    f: float | None = option_field(
        "PROBABILITY",
        "Permanent noise: the probability that a permanent bit is random.",
        flags="-f",
    )
    g: float = option_field(
        "PROBABILITY",
        "Of the bits that -f makes random, the share that becomes 1.",
        flags="-g",
        default=0.5,
    )
    p: float | None = option_field(
        "PROBABILITY", "Probability that a permanent 0 is reported as 1.", flags="-p"
    )
    q: float | None = option_field(
        "PROBABILITY", "Probability that a permanent 1 is reported as 1.", flags="-q"
    )

    def read(self) -> Subject:
        """Return what they name, in one of three ways."""
        _check_one_way()
        if self.metric_name is not None and self.metric_argument is not None:
            raise click.UsageError("name the metric once: as METRIC or with --metric")
        name = self.metric_name if self.metric_argument is None else self.metric_argument
        if self.registry_path is not None and name is not None:
            registry = Registry.load(self.registry_path)
            metric = registry.metric(name)
            return Subject(
                params=metric.params,
                metric=metric,
                registry=registry,
                registry_path=self.registry_path,
            )
        if self.profile is not None:
            return Subject(params=Params.profile(self.profile))
        if self.f is None or self.p is None or self.q is None:
            raise click.UsageError("give --registry and --metric, or --profile, or -f, -p and -q")
        # What is only being looked at may promise nothing.
        k, h, m = self.bits, self.hashes, self.cohorts
        f, g, p, q = self.f, self.g, self.p, self.q
        return Subject(params=Params(k=k, h=h, m=m, f=f, g=g, p=p, q=q, insecure=True))


def subject_options(**declared: Any) -> Any:
    """Declare --registry, --metric, --profile and parameters; the command is given a Subject.

    One that is first of all about a metric declares `metric_argument` too.
    """
    return option_group(_Options, then=_Options.read, **declared)


def _check_one_way() -> None:
    """Refuse what would otherwise be ignored: a registry, a profile and parameters at once."""
    given = list_typed_options().keys()
    if sum(bool(way & given) for way in _WAYS) > 1:
        raise click.UsageError(
            "give only one of: a metric of a registry, a --profile, parameters (-k, -f, -g, "
            "-p, -q, --hashes, --cohorts)"
        )

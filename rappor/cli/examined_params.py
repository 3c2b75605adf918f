"""Options that name the parameters which a command examines.

`rappor privacy` and `rappor audit` examine parameters. The command line names them in one of three
ways: a METRIC of a --registry, a --profile, or the letters one by one. Only a metric has a registry
and epochs, so some sections and checks exist for a metric only.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Final

import click

from rappor.cli.option_values import PROFILE_NAME
from rappor.cli.options import (
    list_typed_options,
    metric_argument,
    option_field,
    option_group,
    registry_option,
)
from rappor.protocol.params import Params
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

_WAYS: Final = (
    {"registry_path", "metric_name"},
    {"profile"},
    {"bits", "hashes", "cohorts", "f", "g", "p", "q"},
)
"""Arguments of each way to name parameters. A command line has the arguments of one way only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedParams:
    """The parameters that a command examines, with their metric and registry if they have one.

    Attributes
    ----------
    params : the parameters.
    metric : the metric that the command line names, or None.
    registry : the registry of the metric, or None.
    registry_path : the path of the registry, or None.
    """

    params: Params
    metric: Metric | None = None
    registry: Registry | None = None
    registry_path: str | None = None

    @property
    def metric_or_placeholder(self) -> Metric:
        """The metric, or a metric without a meaning that has the parameters."""
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
    """Arguments and options of the three ways."""

    metric_name: str | None = metric_argument(required=False)
    registry_path: str | None = registry_option(required=False)
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

    def read(self) -> ExaminedParams:
        """Return the parameters that the command line names."""
        _check_one_way()
        if self.registry_path is not None and self.metric_name is not None:
            registry = Registry.load(self.registry_path)
            metric = registry.metric(self.metric_name)
            return ExaminedParams(
                params=metric.params,
                metric=metric,
                registry=registry,
                registry_path=self.registry_path,
            )
        if self.profile is not None:
            return ExaminedParams(params=Params.profile(self.profile))
        if self.f is None or self.p is None or self.q is None:
            raise click.UsageError("give METRIC and --registry, or --profile, or -f, -p and -q")
        # Nobody collects with parameters that are only examined, so they may protect nothing.
        params = Params(
            k=self.bits,
            h=self.hashes,
            m=self.cohorts,
            f=self.f,
            g=self.g,
            p=self.p,
            q=self.q,
            insecure=True,
        )
        return ExaminedParams(params=params)


def examined_params_options() -> Any:
    """Declare METRIC, --registry, --profile and letters; the command receives ExaminedParams."""
    return option_group(_Options, then=_Options.read)


def _check_one_way() -> None:
    """Raise a usage error for arguments of several ways, because all but one would be ignored."""
    typed = list_typed_options().keys()
    if sum(bool(way & typed) for way in _WAYS) > 1:
        raise click.UsageError(
            "give only one of: a METRIC of a registry, a --profile, parameters (-k, -f, -g, "
            "-p, -q, --hashes, --cohorts)"
        )

"""Options that name the parameters which a command examines.

`rappor privacy` and `rappor audit` examine the parameters of reports. The command line names the
parameters in exactly one of three ways: a METRIC of a --registry, a --profile (named parameters),
or the letters k, f, g, p and q one by one. Only a metric has a registry and epochs, so some
sections and checks exist for a metric only.
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

_ALTERNATIVES: Final = (
    {"registry_path", "metric_name"},
    {"profile"},
    {"bits", "hashes", "cohorts", "f", "g", "p", "q"},
)
"""Three alternatives to name parameters, each as a set of names of arguments. A command line may
have arguments of one alternative only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedParams:
    """Parameters that a command examines, with their metric and registry.

    Attributes
    ----------
    params : the parameters.
    metric : the metric that the command line names; None for parameters without a metric.
    registry : the registry of the metric; None without a metric.
    registry_path : the path of the registry; None without a metric.
    """

    params: Params
    metric: Metric | None = None
    registry: Registry | None = None
    registry_path: str | None = None

    @property
    def metric_or_placeholder(self) -> Metric:
        """The metric. Parameters without a metric get a placeholder, because an audit needs one."""
        # Generalized randomized response is allowed only with one report in an epoch, and such an
        # epoch must end. Other parameters get the longest epoch, in which all reports of a device
        # share one permanent response.
        is_once = self.params.response.needs_interval_epoch
        return self.metric or Metric(
            name="any",
            params=self.params,
            description="-",
            owner="-",
            expires=datetime.date.max,
            epoch="quarter" if is_once else "life",
            interval="epoch" if is_once else "day",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParamsOptions:
    """Arguments and options of the three alternatives to name parameters."""

    metric_name: str | None = metric_argument(required=False)
    registry_path: str | None = registry_option(required=False)
    profile: str | None = option_field(
        PROFILE_NAME,
        "Named parameters. The privacy loss in nats of one report, and of all reports of a value "
        "in one epoch, is 1 and 2 (strict), 2 and 4 (balanced), 4 and 6 (low-noise), 4 and 4 "
        "(once).",
    )
    bits: int = option_field("N", "Bits of a report.", type=int, default=128, flags="-k --bits")
    hashes: int = option_field(
        "N", "Hash functions. Each sets one bit of the report for a string.", type=int, default=1
    )
    cohorts: int = option_field(
        "N",
        "Groups into which devices are divided at random. Each cohort has its own hash functions.",
        type=int,
        default=128,
    )
    f: float | None = option_field(
        "PROBABILITY",
        "Permanent noise, which a device draws once and repeats: the probability that a bit is "
        "replaced by a random bit.",
        flags="-f",
    )
    g: float = option_field(
        "PROBABILITY",
        "Permanent noise: the share of the replaced bits that become 1.",
        flags="-g",
        default=0.5,
    )
    p: float | None = option_field(
        "PROBABILITY",
        "Noise of each report: the probability that a 0 after the permanent noise is sent as 1.",
        flags="-p",
    )
    q: float | None = option_field(
        "PROBABILITY",
        "Noise of each report: the probability that a 1 after the permanent noise is sent as 1.",
        flags="-q",
    )

    def read(self) -> ExaminedParams:
        """Return the parameters that the command line names."""
        _check_one_alternative()
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
        # `insecure` allows any losses: these parameters are examined, and no device uses them.
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
    """Declare METRIC, --registry, --profile, and an option for each number of a parameter set.

    The command gets `ExaminedParams`.
    """
    return option_group(_ParamsOptions, convert=_ParamsOptions.read)


def _check_one_alternative() -> None:
    """Raise a usage error if the person has typed arguments of several alternatives.

    Without the error, `read` would silently ignore the arguments of all alternatives but one.
    """
    typed = list_typed_options().keys()
    if sum(bool(alternative & typed) for alternative in _ALTERNATIVES) > 1:
        raise click.UsageError(
            "give only one of: a METRIC of a registry, a --profile, parameters (-k, -f, -g, "
            "-p, -q, --hashes, --cohorts)"
        )

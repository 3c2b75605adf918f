"""Options that say what a command is about: a registry's metric, or only parameters."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from rappor.cli.console import load_metric
from rappor.protocol.params import PROFILES, Params
from rappor.registry.metric import Metric

_Command = TypeVar("_Command", bound=Callable[..., Any])

_METRIC_OPTIONS = (
    click.option("--registry", "registry_path", type=click.Path(), help="Registry, with --metric."),
    click.option("--metric", "name", help="Name of a metric in the registry."),
)
_OPTIONS = (
    click.option("--profile", type=click.Choice(list(PROFILES)), help="A named parameter set."),
    click.option("-k", type=int, default=128, show_default=True, help="Bits."),
    click.option("-h", "n_hashes", type=int, default=1, show_default=True, help="Hash functions."),
    click.option("-m", type=int, default=128, show_default=True, help="Cohorts."),
    click.option("-f", type=float, help="Permanent noise."),
    click.option("-p", type=float, help="Chance that a 0 is sent as 1."),
    click.option("-q", type=float, help="Chance that a 1 is sent as 1."),
)


_WAYS = ({"registry_path", "name"}, {"profile"}, {"k", "n_hashes", "m", "f", "p", "q"})
"""Options that say the same in different ways."""


def params_options(command: _Command) -> _Command:
    """Add --profile and -k -h -m -f -p -q to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def params_of(
    *,
    profile: str | None,
    k: int,
    n_hashes: int,
    m: int,
    f: float | None,
    p: float | None,
    q: float | None,
) -> Params | None:
    """Return the parameters that the options name, or None if they name none."""
    _check_one_way()
    if profile is not None:
        return Params.profile(profile)
    if f is None or p is None or q is None:
        return None
    # What is only being looked at may promise nothing.
    return Params(k=k, h=n_hashes, m=m, f=f, p=p, q=q, insecure=True)


def metric_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add --registry, --metric and those of parameters, and give the command what they mean.

    It is given as `metric`; mere parameters are those of a metric without a name.
    """

    @functools.wraps(command)
    def wrapped(
        *,
        registry_path: str | None,
        name: str | None,
        profile: str | None,
        k: int,
        n_hashes: int,
        m: int,
        f: float | None,
        p: float | None,
        q: float | None,
        **others: Any,
    ) -> None:
        _check_one_way()
        if name is not None and registry_path is not None:
            metric = load_metric(registry_path, name)
        else:
            metric = _unnamed(
                params_of(profile=profile, k=k, n_hashes=n_hashes, m=m, f=f, p=p, q=q)
            )
        command(metric=metric, **others)

    for option in reversed(_METRIC_OPTIONS):
        wrapped = option(wrapped)
    return params_options(wrapped)


def _check_one_way() -> None:
    """Refuse what would otherwise be ignored: a registry, a profile and letters at once."""
    context = click.get_current_context()
    given = {
        option
        for option in context.params
        if context.get_parameter_source(option) is ParameterSource.COMMANDLINE
    }
    if sum(bool(way & given) for way in _WAYS) > 1:
        raise click.UsageError(
            "give one of a registry's metric, a --profile, and -k -h -m -f -p -q, not two"
        )


def _unnamed(params: Params | None) -> Metric:
    if params is None:
        raise click.UsageError("give --registry and --metric, or --profile, or -f, -p and -q")
    return Metric(
        name="any",
        params=params,
        description="-",
        owner="-",
        expires=datetime.date.max,
        epoch="life",
    )

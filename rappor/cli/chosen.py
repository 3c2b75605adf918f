"""Options by which a command is given parameters without a registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from rappor.params import PROFILES, Params

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--profile", type=click.Choice(list(PROFILES)), help="A named parameter set."),
    click.option("-k", type=int, default=128, show_default=True, help="Bits."),
    click.option("-h", "n_hashes", type=int, default=1, show_default=True, help="Hash functions."),
    click.option("-m", type=int, default=128, show_default=True, help="Cohorts."),
    click.option("-f", type=float, help="Permanent noise."),
    click.option("-p", type=float, help="Chance that a 0 is sent as 1."),
    click.option("-q", type=float, help="Chance that a 1 is sent as 1."),
)


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
    if profile is not None:
        return Params.profile(profile)
    if f is None or p is None or q is None:
        return None
    # What is only being looked at may promise nothing.
    return Params(k=k, h=n_hashes, m=m, f=f, p=p, q=q, insecure=True)

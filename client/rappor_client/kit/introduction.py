"""`telemetry init`: a program's registry, and the section of its README, from its own names."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rappor.base.errors import ParamsError
from rappor.privacy.notice import privacy_notice
from rappor.privacy.small_cohorts import choose_list_cohorts
from rappor.protocol.encodings import encoding_of
from rappor.protocol.params import Params
from rappor.protocol.parts import Part
from rappor.registry.metric import MIN_COHORT
from rappor.registry.registry import Registry
from rappor_client.kit.host import METRIC, Host

_COHORT_DEVICES: Final = 20
"""Devices that a cohort needs in a month, or its blocks never close (server/README.md)."""

_PARTS: Final = (Part("prefix:3", 0.2), Part("whole"))
"""Parts of a list: a fifth of the devices report how a name begins, so that names of plugins, which
nobody listed, are found."""

_REGISTRY: Final = """\
# What {name} reports, written by `{name} telemetry init`. Collectors of later versions accept it as
# one of their `older` registries.
[budget]
total = {total}                  # nats that a device may lose in a calendar year

[metrics.{metric}]
description = {description}
owner = {owner}
expires = {expires}
{encoding}
profile = "once"
interval = "epoch"
epoch = "month"
"""

_ONEHOT: Final = """\
encoding = "onehot"
categories = [
{names}]"""

_LIST: Final = """\
encoding = "bloom"
candidates = [                  # this list may change at any time
{names}]
parts = [{parts}]  # find names that are not listed
m = {cohorts}"""

_DESCRIPTION: Final = (
    "Which {what} of {name} are used. Each device answers once a month, with one of its uses on a "
    "random day. So a share is a share of devices, not of uses. Nothing links two answers."
)

_SECTION: Final = """\
## Telemetry

Only if you agree, {name} reports which of its {what} are used.
Without a yes nothing is computed or sent, and only the answer is kept. The reports have names of
{what} only, never a value, a file name or an identifier, and a device adds random noise
before anything leaves.

{notices}

{choices}

The reports go to {collector}.{public}
"""

_CHOICES: Final = """\
| you want to | do this |
|---|---|
| agree, refuse and erase | `{name} telemetry on`, `{name} telemetry off` |
| see what decides, and what would be sent | `{name} telemetry status`, `{name} telemetry preview` |
| see all that is kept and was sent | `{name} telemetry view`, `{name} telemetry log` |
| begin anew | `{name} telemetry reset` |
| refuse for a whole environment | set {switches} |"""

_CHOICES_OF_ACCOUNTS: Final = """\
You agree in your account. It has a device of its own on our server, which is erased when you refuse
or delete the account. Our server sees the pages that it serves; the collector learns only what is
described here."""


def add_arguments(command: argparse.ArgumentParser, host: Host) -> None:
    """Add what only the makers of a program know."""
    command.add_argument(
        "--owner", metavar="WHO", help="Who is responsible: an address for people."
    )
    command.add_argument(
        "--expires",
        type=datetime.date.fromisoformat,
        metavar="DAY",
        help=f"The last day of collection. The default is {_default_expiry()}.",
    )
    command.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help=f"Devices that you expect in a month. With many, unlisted {host.what} are found, too.",
    )
    command.add_argument(
        "--readme", type=Path, metavar="FILE", help="Where the section goes. Default: the terminal."
    )


def write(host: Host, chosen: argparse.Namespace, names: Sequence[str]) -> Iterator[str]:
    """Write a registry unless there is one, then the section; yield what people should know."""
    path = Path(host.registry)
    is_new = not path.exists()
    if is_new:
        if not chosen.owner:
            raise ParamsError("--owner must be given for a new registry: who is responsible")
        expires = chosen.expires or _default_expiry()
        text = registry_of(host, names, owner=chosen.owner, expires=expires, devices=chosen.devices)
        path.write_text(text, encoding="utf-8")
        yield f"{path} has {len(names)} names of {host.what}. It ships with {host.name}."
        if not Registry.loads(text)[METRIC].listed and not host.is_site:
            least = f"--devices {devices_for_plugins()} or more"
            yield f"Unlisted {host.what} are not counted: that needs {least}."
    else:
        kept = Registry.load(path)
        metric = kept[METRIC]
        if new := sorted({*names}.difference(metric.params.categories, metric.listed)):
            way = (
                "Add them to its candidates" if metric.listed else "For a new list remove it first"
            )
            yield f"{path} is kept, and lacks {', '.join(new)}. {way}."
        if ignored := [*_ignored_options(host, chosen, names, kept)]:
            yield f"{path} is kept, so {', '.join(ignored)}. For a new registry remove it first."
    section = section_of(host)
    if chosen.readme is None:
        yield section
        return
    readme = chosen.readme.read_text(encoding="utf-8") if chosen.readme.exists() else ""
    first = re.escape(section[: section.index(" reports which")])
    earlier = rf"^{first}.*?^The reports go to [^\n]*"
    parts = re.split(earlier, readme, maxsplit=1, flags=re.DOTALL | re.MULTILINE)
    parts.insert(1, section)
    text = "\n\n".join(filter(None, map(str.strip, parts)))
    chosen.readme.write_text(f"{text}\n", encoding="utf-8")
    yield f"The section Telemetry is in {chosen.readme}."


def _default_expiry() -> datetime.date:
    """Return the end of the next year."""
    return datetime.date(datetime.datetime.now(datetime.UTC).year + 1, 12, 31)


def _ignored_options(
    host: Host, chosen: argparse.Namespace, names: Sequence[str], kept: Registry
) -> Iterator[str]:
    """Yield what each option says that a registry, which stays as it is, contradicts."""
    metric = kept[METRIC]
    if chosen.owner and chosen.owner != metric.owner:
        yield f"--owner {chosen.owner} is ignored (its owner is {metric.owner})"
    if chosen.expires and chosen.expires != metric.expires:
        yield f"--expires {chosen.expires} is ignored (it expires on {metric.expires})"
    if chosen.devices is not None:
        text = registry_of(
            host, names, owner=metric.owner, expires=metric.expires, devices=chosen.devices
        )
        wanted = Registry.loads(text, today=datetime.date.min)[METRIC].params
        is_same_kind = encoding_of(wanted).takes_values_of(metric.params)
        if not is_same_kind or wanted.m != metric.params.m:
            yield f"--devices {chosen.devices} is ignored (it was made for another number)"


def registry_of(
    host: Host, uses: Sequence[str], *, owner: str, expires: datetime.date, devices: int | None
) -> str:
    """Return the text of a registry; MetricError for names that cannot be categories.

    Few devices report one of the program's own names, as one-hot. Many report any name, so that
    those of plugins are found beside the listed ones.
    """
    has_plugins = devices is not None and devices >= devices_for_plugins() and not host.is_site
    description = _DESCRIPTION.format(name=host.name, what=host.what)
    if METRIC not in host.what:
        description += f" A {METRIC} is one of these {host.what}."
    fields = {
        "name": host.name,
        "metric": METRIC,
        "description": json.dumps(description, ensure_ascii=False),
        "owner": json.dumps(owner, ensure_ascii=False),
        "expires": expires,
        "encoding": _list_lines(uses, devices or 0) if has_plugins else _onehot_lines(uses),
    }
    priced = Registry.loads(_REGISTRY.format(total="inf", **fields))
    total = math.fsum(each.total for each in priced.reserved)
    return _REGISTRY.format(total=f"{total:g}", **fields)


def _onehot_lines(uses: Sequence[str]) -> str:
    """Write that a device reports one of these names."""
    return _ONEHOT.format(names=_quoted(uses))


def _list_lines(uses: Sequence[str], devices: int) -> str:
    """Write that a device reports any name, and which ones are expected."""
    parts = ", ".join(
        f'{{name = "{part.name}"' + ("" if part.share is None else f", share = {part.share}") + "}"
        for part in _PARTS
    )
    cohorts = choose_list_cohorts(_smallest_share() * devices, min_cohort=MIN_COHORT)
    return _LIST.format(names=_quoted(uses), parts=parts, cohorts=cohorts)


def _quoted(uses: Sequence[str]) -> str:
    return "".join(f"  {json.dumps(each, ensure_ascii=False)},\n" for each in uses)


def devices_for_plugins() -> int:
    """Return the devices a month from which on commands of plugins are looked for.

    Every cohort of every part then has blocks that close, also with as many cohorts as a profile
    has: with fewer, rare names collide.
    """
    return math.ceil(_COHORT_DEVICES * Params.profile("once").m / _smallest_share())


def _smallest_share() -> float:
    """Return the share of devices that report the rarest part."""
    shares = [part.share for part in _PARTS if part.share is not None]
    return min([*shares, 1 - math.fsum(shares)])


def section_of(host: Host) -> str:
    """Return the section of a program's README, from its registry."""
    registry = Registry.load(host.registry)
    metrics = list(registry.values())
    notices = [privacy_notice(metric) for metric in metrics]
    choices = _CHOICES_OF_ACCOUNTS if host.is_site else _CHOICES
    switches = ", ".join(f"`{name}=1`" for name in host.variables)
    public = f" Everybody may read the results: {host.public_page}" if host.public_page else ""
    return _SECTION.format(
        name=host.name,
        what=host.what,
        notices="\n\n".join(f"> {text}".replace("\n", "\n> ") for text in notices),
        choices=choices.format(name=host.name, switches=switches),
        collector=host.collector if isinstance(host.collector, str) else "nobody yet",
        public=public,
    )

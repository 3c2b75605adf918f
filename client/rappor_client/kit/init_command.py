"""`telemetry init`: writes a program's registry and the section Telemetry of its README.

The registry lists the names of the program's commands, tools or pages. It has one of two encodings:

    one-hot    for few devices, and for a web application. A device reports one of the listed names.
               Other names are not counted.
    bloom      for many devices (`min_devices_for_list`). A device reports any name, also a name
               that is not listed, such as a command of a plugin. Some devices report the first
               letters of the name, from which the analyst finds unlisted names. The registry lists
               names as candidates, so this module calls this encoding the list encoding.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rappor.base.atomic_files import read_text
from rappor.base.errors import ParamsError
from rappor.privacy.notice import privacy_notice
from rappor.privacy.small_cohorts import choose_list_cohorts
from rappor.protocol.encodings import get_encoding
from rappor.protocol.params import Params
from rappor.protocol.parts import Part
from rappor.registry.metric import MIN_COHORT
from rappor.registry.registry import Registry
from rappor_client.kit.consent_question import describe_other_metrics
from rappor_client.kit.host import METRIC, Host
from rappor_client.kit.payload import find_metric
from rappor_client.network.address import parse_collector

_COHORT_DEVICES: Final = 20
"""Number of devices that a cohort needs in a month. The collector adds the reports of one cohort on
consecutive days to a block. It shows the sums of a block only after the block has enough reports
and is closed (server/README.md, Blocks). With fewer devices the blocks of a cohort never close."""

_PARTS: Final = (Part("prefix:3", 0.2), Part("whole"))
"""Parts of the list encoding. A fifth of the devices report the first three letters of a name, from
which the analyst finds names that are not in the list."""

# Texts of the registry and of the README. `str.format` fills in the fields in braces.
_REGISTRY: Final = """\
# What {name} reports, written by `{name} telemetry init`. When a later version has another
# registry, name this file in the collector's setting `older`. It then accepts reports of both.
[program]
name = {title}

[budget]
total = {total}                  # privacy loss of a device in a calendar year, at most, in nats

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

_DESCRIPTION: Final = "Which {what} of {name} are used"
"""Description of the metric. Notices and consent texts quote the description inside sentences of
their own, so it is one phrase and has no full stop."""

_SECTION: Final = """\
## Telemetry

Only if you agree, {name} reports which of its {what} are used. A device sends one report a
month: one use, drawn from the uses of one random day. A published share is therefore a share of
devices, not of uses.
Without a yes nothing is computed or sent, and only the answer is kept. These reports have names of
{what} only, no argument and no file name, and a device adds random noise before anything
leaves. The id of an upload is random and new for each upload, so that a repeated upload is counted
once.{others}

{notices}

{choices}

The reports go to {collector}.{public}
"""

_OTHERS: Final = """
{name} also reports, with random noise and only if you agree: {others}."""
"""The section contains this sentence if the maker has added metrics to the registry."""

_CHOICES: Final = """\
| you want to | do this |
|---|---|
| agree, refuse and erase | `{name} telemetry on`, `{name} telemetry off` |
| see its state, and what would be sent | `{name} telemetry status`, `{name} telemetry preview` |
| see all that is kept and was sent | `{name} telemetry view`, `{name} telemetry log` |
| begin anew | `{name} telemetry reset` |
| refuse for a whole environment | set {switches} |"""

_CHOICES_OF_ACCOUNTS: Final = """\
You agree in your account. Our server then stores a random secret and unsent reports for the
account. They are erased when you refuse or delete the account. Our server sees the pages that it
serves; the collector learns only what is described here."""


_DEVICE_DIGITS: Final = 12
"""Largest number of digits of a number of devices. More devices than people do not exist."""


def add_arguments(command: argparse.ArgumentParser, host: Host) -> None:
    """Add the options of `telemetry init` to its parser."""
    command.add_argument(
        "--owner", metavar="WHO", help="Who is responsible: an address for people."
    )
    command.add_argument(
        "--expires",
        type=datetime.date.fromisoformat,
        metavar="DAY",
        help=f"The last day of collection. The default is {_compute_default_expiry()}.",
    )
    command.add_argument(
        "--devices",
        type=_parse_number,
        metavar="N",
        help=f"Devices that you expect in a month. With many, unlisted {host.what} are found, too.",
    )
    command.add_argument(
        "--readme", type=Path, metavar="FILE", help="Where the section goes. Default: the terminal."
    )


def _parse_number(text: str) -> int:
    """Return an integer of at least 0, for `type=` of an argument."""
    # For the ValueError of `int`, argparse would print the name of this function.
    if not text.isdecimal() or len(text) > _DEVICE_DIGITS:
        raise argparse.ArgumentTypeError(f"it must be a number of devices, got {text!r}")
    return int(text)


def run_init(host: Host, args: argparse.Namespace, names: Sequence[str]) -> Iterator[str]:
    """Write the registry unless it exists, write the section of the README, and yield messages.

    Parameters
    ----------
    host
        The program.
    args
        Parsed options of `telemetry init`.
    names
        Names of the program's commands and flags, tools or pages.

    Raises
    ------
    RapporError
        The registry, the owner or the address of the collector is wrong.
    OSError
        A file cannot be written.
    """
    # Runs of the program print no failure. So a wrong address of the collector is refused here: the
    # maker of the program reads the message.
    if isinstance(host.collector, str):
        parse_collector(host.collector)
    path = Path(host.registry)
    if path.exists():
        yield from _compare_registry(host, args, names)
    else:
        yield from _write_registry(host, args, names)
    section = format_section(host)
    if args.readme is None:
        yield section
        return
    original = read_text(args.readme) if args.readme.exists() else ""
    readme = original.replace("\r\n", "\n")
    # A second `init` replaces the section of the first one. The section is found by its first words
    # and its last sentence, which every version has.
    first = re.escape(section[: section.index(" reports which")])
    section_pattern = rf"^{first}.*?^The reports go to [^\n]*"
    parts = re.split(section_pattern, readme, maxsplit=1, flags=re.DOTALL | re.MULTILINE)
    parts.insert(1, section)
    text = "\n\n".join(filter(None, map(str.strip, parts)))
    # The file keeps its line ends, so that a comparison of versions shows the section only.
    newline = "\r\n" if "\r\n" in original else None
    args.readme.write_text(f"{text}\n", encoding="utf-8", newline=newline)
    yield f"The section Telemetry is in {args.readme}."


def _write_registry(host: Host, args: argparse.Namespace, names: Sequence[str]) -> Iterator[str]:
    """Write a new registry, and yield messages about it."""
    path = Path(host.registry)
    if not args.owner:
        raise ParamsError("--owner must be given for a new registry: who is responsible")
    expires = args.expires or _compute_default_expiry()
    # Nothing would be recorded after such a day, and runs of the program print no failure.
    if expires < host.compute_date():
        raise ParamsError(f"--expires must be a day that is not over, got {expires}")
    text = format_registry(host, names, owner=args.owner, expires=expires, devices=args.devices)
    path.write_text(text, encoding="utf-8")
    yield f"{path} has {len(names)} names of {host.what}. It ships with {host.name}."
    registry = Registry.loads(text)
    if registry[METRIC].listed:
        return  # devices report any name, so the list may change at any time
    # Bad case: a release with one more command silenced every device until January.
    yield (
        f"All {registry.total:g} nats of a device's year are for these names. If a later registry "
        f"has others, give it total = {2 * registry.total:g}, or devices that have reported this "
        "year record nothing until January."
    )
    if not host.is_site:
        least = f"--devices {min_devices_for_list()} or more"
        yield f"Unlisted {host.what} are not counted: that needs {least}."


def _compare_registry(host: Host, args: argparse.Namespace, names: Sequence[str]) -> Iterator[str]:
    """Yield the differences between an existing registry, which stays, and the call.

    Without these messages nobody would notice that uses of a new command are never counted.
    """
    path = Path(host.registry)
    registry = Registry.load(path)
    metric = find_metric(registry)
    if new_names := sorted({*names}.difference(metric.params.categories, metric.listed)):
        instruction = (
            "Add them to its candidates"
            if metric.listed
            else "For a new list remove the file first"
        )
        yield f"{path} is kept, and lacks {', '.join(new_names)}. {instruction}."
    if clauses := [*_list_ignored_options(host, args, names, registry)]:
        yield f"{path} is kept, so {', '.join(clauses)}. For a new registry remove the file first."


def _compute_default_expiry() -> datetime.date:
    """Return the last day of the next year."""
    return datetime.date(datetime.datetime.now(datetime.UTC).year + 1, 12, 31)


def _list_ignored_options(
    host: Host, args: argparse.Namespace, names: Sequence[str], registry: Registry
) -> Iterator[str]:
    """Yield a clause for each option of the call that the existing registry contradicts."""
    metric = find_metric(registry)
    if args.owner and args.owner != metric.owner:
        yield f"--owner {args.owner} is ignored (its owner is {metric.owner})"
    if args.expires and args.expires != metric.expires:
        yield f"--expires {args.expires} is ignored (it expires on {metric.expires})"
    if args.devices is not None:
        text = format_registry(
            host, names, owner=metric.owner, expires=metric.expires, devices=args.devices
        )
        expected_params = Registry.loads(text, today=datetime.date.min)[METRIC].params
        is_same_kind = get_encoding(expected_params).has_same_encoding(metric.params)
        if not is_same_kind or expected_params.m != metric.params.m:
            yield f"--devices {args.devices} is ignored (it was made for another number)"


def format_registry(
    host: Host, names: Sequence[str], *, owner: str, expires: datetime.date, devices: int | None
) -> str:
    """Return the text of a registry.

    Parameters
    ----------
    host
        The program.
    names
        Names to list.
    owner
        Address of the responsible person.
    expires
        Last day of the collection.
    devices
        Expected number of devices in a month, None if unknown.

    Raises
    ------
    MetricError
        A name cannot be a category.
    """
    # The list encoding finds names that are not listed. A site has none: it records only names of
    # its routes, and the registry lists all routes.
    is_list = devices is not None and devices >= min_devices_for_list() and not host.is_site
    description = _DESCRIPTION.format(name=host.name, what=host.what)
    if METRIC not in host.what:
        description += f" (a {METRIC} is one of these {host.what})"
    fields = {
        "name": host.name,
        "title": json.dumps(host.name, ensure_ascii=False),
        "metric": METRIC,
        "description": json.dumps(description, ensure_ascii=False),
        "owner": json.dumps(owner, ensure_ascii=False),
        "expires": expires,
        "encoding": _format_list(names, devices or 0) if is_list else _format_onehot(names),
    }
    # The total must be at least the privacy loss that the metric reserves in a year. This loss is
    # computed by `Registry`, so a registry with an infinite total is parsed first.
    unlimited = Registry.loads(_REGISTRY.format(total="inf", **fields))
    total = math.fsum(reservation.total for reservation in unlimited.reserved)
    return _REGISTRY.format(total=f"{total:g}", **fields)


def _format_onehot(names: Sequence[str]) -> str:
    """Return the lines of the one-hot encoding: a device reports one of these names."""
    return _ONEHOT.format(names=_quote_names(names))


def _format_list(names: Sequence[str], devices: int) -> str:
    """Return the lines of the list encoding: a device reports any name.

    The listed names are the candidates of a decode. The number of cohorts depends on the number of
    devices.
    """
    parts = ", ".join(_format_part(part) for part in _PARTS)
    cohorts = choose_list_cohorts(_compute_smallest_share() * devices, min_cohort=MIN_COHORT)
    return _LIST.format(names=_quote_names(names), parts=parts, cohorts=cohorts)


def _format_part(part: Part) -> str:
    """Return a part as an inline table of TOML. The last part has no share."""
    share = "" if part.share is None else f", share = {part.share}"
    return f'{{name = "{part.name}"{share}}}'


def _quote_names(names: Sequence[str]) -> str:
    """Return names as the lines of an array of TOML, one name in a line."""
    return "".join(f"  {json.dumps(name, ensure_ascii=False)},\n" for name in names)


def min_devices_for_list() -> int:
    """Return the smallest number of devices a month for the list encoding.

    Each cohort of each part needs 20 devices (`_COHORT_DEVICES`), or its blocks never close. The
    profile "once" has 128 cohorts, and 0.2 of the devices report the rarest part. So the number is
    20 * 128 / 0.2 = 12,800 devices.

    Fewer cohorts would need fewer devices. But two names that share bits in one cohort have
    different bits in most other cohorts. With few cohorts a decode could not tell a rare name from
    the names that share its bits.
    """
    return math.ceil(_COHORT_DEVICES * Params.profile("once").m / _compute_smallest_share())


def _compute_smallest_share() -> float:
    """Return the share of devices that report the rarest part."""
    shares = [part.share for part in _PARTS if part.share is not None]
    return min([*shares, 1 - math.fsum(shares)])


def format_section(host: Host) -> str:
    """Return the section Telemetry of a program's README, from its registry."""
    registry = Registry.load(host.registry)
    metrics = list(registry.values())
    notices = [privacy_notice(metric) for metric in metrics]
    choices = _CHOICES_OF_ACCOUNTS if host.is_site else _CHOICES
    switches = ", ".join(f"`{name}=1`" for name in host.variables)
    others = describe_other_metrics(registry, METRIC)
    public = f" Everybody may read the results: {host.public_page}" if host.public_page else ""
    return _SECTION.format(
        name=host.name,
        what=host.what,
        others=_OTHERS.format(name=host.name, others=others) if others else "",
        notices="\n\n".join(f"> {text}".replace("\n", "\n> ") for text in notices),
        choices=choices.format(name=host.name, switches=switches),
        collector=host.collector if isinstance(host.collector, str) else "nobody yet",
        public=public,
    )

"""`rappor privacy`: what exactly a metric promises, and what it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from rappor.cli.console import COUNT, chart_option, json_option, print_json
from rappor.cli.options import params_of, params_options
from rappor.cli.privacy_tables import print_facts
from rappor.errors import ParamsError
from rappor.planning.changed_params import decode_together, joint_error
from rappor.privacy.accountant import account
from rappor.privacy.changing_params import change_cost
from rappor.privacy.changing_values import change_visibility
from rappor.privacy.linkability import cohort_bits, link_score, reports_to_recover
from rappor.privacy.notice import promise
from rappor.privacy.shuffling import likely_smallest_cohort, shuffle
from rappor.protocol.loss import belief_bound, epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.ranges import check_number
from rappor.registry.metric import Metric
from rappor.registry.registry import Registry

if TYPE_CHECKING:
    from rappor.reporting.charts import Chart

_REPEATS = (1, 2, 3, 5, 10, 100)
_CHANGES = (2, 4, 10, 40)
_LINKS = (1, 10, 100)
_PRIORS = (0.01, 0.1, 0.5, 0.9)
_DRAWN = {1: "1 report", 10: "10 reports", None: "for ever"}


@click.command()
@click.argument("name", required=False, metavar="[METRIC]")
@click.option("--registry", "registry_path", type=click.Path(), help="Registry, with a METRIC.")
@params_options
@click.option("--reports", type=COUNT, default=10, show_default=True, help="Reports of each value.")
@click.option(
    "--values", type=COUNT, default=1, show_default=True, help="Distinct values, or epochs."
)
@click.option("--group", type=COUNT, default=2, show_default=True, help="People counted as one.")
@click.option(
    "--devices", type=COUNT, default=1_000_000, show_default=True, help="In a shuffled batch."
)
@click.option(
    "--counts", "counts_path", type=click.Path(), help="A collection: its actual cohorts."
)
@click.option(
    "--delta", type=float, default=1e-9, show_default=True, help="Chance left open by shuffling."
)
@click.option("--changed", type=click.Path(), help="Registry with the METRIC as it would become.")
@json_option
@chart_option
def privacy(
    name: str | None,
    registry_path: str | None,
    reports: int,
    values: int,
    group: int,
    devices: int,
    counts_path: str | None,
    delta: float,
    changed: str | None,
    as_json: bool,
    chart: str | None,
    **noise: Any,
) -> None:
    """Print what a METRIC of a registry promises: losses, beliefs, and what stays visible.

    Or what parameters do, without a registry: --profile, or -k -h -m -f -p -q.
    """
    check_number("delta", delta, "(0, 1)")
    registry = None
    metric = None
    chosen = params_of(**noise)
    if name is not None and registry_path is not None:
        registry = Registry.load(registry_path)
        metric = registry.metric(name)
        chosen = metric.params
    if chosen is None or (metric is None and (name or registry_path)):
        raise click.UsageError("give --registry and a METRIC, or --profile, or -f, -p and -q")
    if changed is not None and metric is None:
        raise click.UsageError("--changed needs --registry and a METRIC")
    facts = {
        **_parameters(chosen),
        "beliefs": list(_beliefs(chosen)),
        "promise": None if metric is None else promise(metric),
        "changes": [] if metric is not None and metric.epoch != "life" else list(_changes(chosen)),
        "shuffled": _shuffled(chosen, devices, counts_path, delta),
        "linking": _linking(chosen),
    }
    if registry is not None:
        facts["account"] = _account(registry, values, reports, group)
    if changed is not None and metric is not None:
        becomes = Registry.load(changed).metric(metric.name)
        facts["changed"] = _changed(metric, becomes, reports, devices)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
    if chart is not None:
        from rappor.reporting.charts import save

        save(_draw(chosen), chart)


def _parameters(params: Params) -> dict[str, Any]:
    return {
        **{key: getattr(params, key) for key in ("encoding", "k", "h", "m", "f", "p", "q")},
        "fingerprint": params.fingerprint,
        "p_star": params.p_star,
        "q_star": params.q_star,
        "epsilon_1": epsilon_n(params, 1),
        "epsilon_n": {str(n): epsilon_n(params, n) for n in _REPEATS},
        "epsilon_inf": epsilon_inf(params),
    }


def _beliefs(params: Params) -> Iterator[dict[str, Any]]:
    """Yield the least and the most that reports can make of a suspicion; null is for ever."""
    for n in (*_REPEATS, None):
        epsilon = epsilon_inf(params) if n is None else epsilon_n(params, n)
        for prior in _PRIORS:
            low, high = belief_bound(epsilon, prior)
            yield {"reports": n, "epsilon": epsilon, "prior": prior, "low": low, "high": high}


def _changes(params: Params) -> Iterator[dict[str, Any]]:
    """Yield how visible it is that the value changed after half of the reports."""
    for n in _CHANGES:
        seen = change_visibility(params, n - n // 2, n // 2)
        yield {"reports": n, "sum": seen.claim, "worst": seen.worst, "mean": seen.mean}


def _shuffled(
    params: Params, devices: int, counts_path: str | None, delta: float
) -> dict[str, Any]:
    """Bound losses in a shuffled batch, inside the smallest cohort: the actual or a likely one."""
    if counts_path is None:
        # Half of delta is for a cohort that turns out smaller.
        smallest, left = likely_smallest_cohort(devices, params.m, delta=delta / 2), delta / 2
        if params.m == 1:
            left = delta
    else:
        from rappor.counts.counts import Counts

        counts = Counts.load(counts_path)
        if counts.params != params:
            raise ParamsError(
                f"counts must be of parameters {params.fingerprint}, "
                f"got {counts.params.fingerprint}"
            )
        sizes = counts.reports
        devices = int(sizes.sum())
        smallest, left = int(sizes[sizes > 0].min(initial=devices)), delta
    batch = {"devices": devices, "smallest_cohort": smallest, "actual": counts_path is not None}
    rows = []
    for n in (1, 10) if smallest else ():
        one = shuffle(epsilon_n(params, n), smallest, delta=left)
        rows.append({"reports": n, **{key: getattr(one, key) for key in _SHUFFLED}})
    return {**batch, "delta": delta, "rows": rows}


_SHUFFLED = ("local", "most_2021", "bound_2021", "most_2023", "bound_2023", "epsilon")


def _linking(params: Params) -> dict[str, Any]:
    return {
        "cohort_bits": cohort_bits(params),
        "score": {str(n): link_score(params, n) for n in _LINKS},
        "reports_to_recover": reports_to_recover(params),
    }


def _account(registry: Registry, values: int, reports: int, group: int) -> dict[str, Any]:
    """Add up a person's loss over the registry, after so many reports and for ever."""
    now = account(registry.values(), values=values, reports=reports)
    ever = account(registry.values(), values=values)
    return {
        "values": values,
        "reports": reports,
        "metrics": [
            {"metric": a.metric, "epoch": a.epoch, "epsilon": a.epsilon, "ever": b.epsilon}
            for a, b in zip(now.items, ever.items, strict=True)
        ],
        "epsilon": now.epsilon,
        "ever": ever.epsilon,
        "group": group,
        "group_epsilon": now.of_group(group),
        "group_ever": ever.of_group(group),
    }


def _changed(old: Metric, new: Metric, reports: int, devices: int) -> dict[str, Any]:
    """Say what a change of the metric costs a device and does to estimates."""
    facts: dict[str, Any] = {
        "params": new.params.fingerprint,
        "epoch": [old.epoch, new.epoch],
        "same": (old.params, old.epoch) == (new.params, new.epoch),
        "reports": reports,
        "devices": devices,
        "decode_together": decode_together(old.params, new.params),
    }
    for_life = old.epoch == new.epoch == "life"
    cost = change_cost(old.params, new.params, before=reports, after=reports, for_life=for_life)
    facts |= {key: getattr(cost, key) for key in ("kept", "epsilon", "epsilon_inf")}
    if facts["decode_together"]:
        error = joint_error(old.params, new.params, before=devices, after=devices)
        names = ("before", "after", "together", "same_devices")
        facts["std_error"] = {key: getattr(error, key) for key in names}
    return facts


def _draw(params: Params) -> Chart:
    """Draw the most and the least that reports make of a suspicion, against that suspicion."""
    from rappor.reporting.charts import Axis, line_chart

    titles = {"prior": "belief before", "after": "least and most belief after"}
    axes = {
        field: Axis(field=field, title=title, domain=(0, 1), format="%")
        for field, title in titles.items()
    }
    rows = []
    for n, name in _DRAWN.items():
        epsilon = epsilon_inf(params) if n is None else epsilon_n(params, n)
        priors = [step / 200 for step in range(201)]
        label = f"{name}: {epsilon:.3g} nats"
        for prior in priors:
            for end, belief in zip(("least", "most"), belief_bound(epsilon, prior), strict=True):
                rows.append({"prior": prior, "after": belief, "end": end, "reports": label})
    return line_chart(
        rows,
        x=axes["prior"],
        y=axes["after"],
        series="reports",
        part="end",
        title="What reports of one value can make of a belief",
    )

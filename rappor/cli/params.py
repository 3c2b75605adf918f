"""`rappor params`: what a parameter set does, hides and finds."""

from __future__ import annotations

import math
from typing import Any

import click
from rich.table import Table

from rappor.cli.console import NUMBER, json_option, output, print_json
from rappor.cli.options import metric_options
from rappor.planning.detection_limit import detection_limit, standard_error
from rappor.privacy.notice import at_most
from rappor.protocol.loss import belief_bound, epsilon_1, epsilon_inf, epsilon_n
from rappor.protocol.params import Params
from rappor.registry.metric import Metric

_REPEATS = (1, 2, 3, 5, 10, 100)


@click.command()
@metric_options
@click.option("--reports", type=NUMBER, default=1_000_000, show_default=True, help="For the limit.")
@click.option("--candidates", type=NUMBER, default=1000, show_default=True, help="For the limit.")
@json_option
def params(metric: Metric, reports: int, candidates: int, as_json: bool) -> None:
    """Print effective probabilities, privacy losses and the detection limit.

    Of a metric (--registry, --metric), of a profile (--profile), or of -k -h -m -f -p -q.
    """
    facts = _facts(metric.params, reports, candidates)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _facts(chosen: Params, reports: int, candidates: int) -> dict[str, Any]:
    """Collect what is printed."""
    return {
        **{key: getattr(chosen, key) for key in ("encoding", "k", "h", "m", "f", "p", "q")},
        "p_star": chosen.p_star,
        "q_star": chosen.q_star,
        "epsilon_1": epsilon_1(chosen),
        "epsilon_n": {str(n): epsilon_n(chosen, n) for n in _REPEATS},
        "epsilon_inf": epsilon_inf(chosen),
        "fingerprint": chosen.fingerprint,
        "reports": reports,
        "candidates": candidates,
        "std_error": standard_error(chosen, reports),
        "detection_limit": detection_limit(chosen, reports, n_candidates=candidates),
    }


def _print(facts: dict[str, Any]) -> None:
    table = Table(show_header=False, box=None)
    shape = ", ".join(f"{key} = {facts[key]:.6g}" for key in ("k", "h", "m", "f", "p", "q"))
    table.add_row("parameters", f"{facts['encoding']}, {shape}")
    table.add_row("fingerprint", facts["fingerprint"])
    table.add_row("p*, q*", f"{facts['p_star']:.6f}, {facts['q_star']:.6f}")
    for n, epsilon in facts["epsilon_n"].items():
        noun = "report" if n == "1" else "reports"
        table.add_row(f"loss, {n} {noun}", _loss(epsilon))
    table.add_row("loss, for ever", _loss(facts["epsilon_inf"]))
    table.add_row(
        "detects",
        f"a share of {facts['detection_limit']:.3%} with 80 % probability in {facts['reports']:,} "
        f"reports, among {facts['candidates']:,} candidates (Bonferroni 5 %); standard error "
        f"{facts['std_error']:,.0f} reports",
    )
    output().print(table)


def _loss(epsilon: float) -> str:
    if math.isinf(epsilon):
        return "infinite: the value can be learned with certainty"
    most = at_most(belief_bound(epsilon, 0.5)[1])
    return f"{epsilon:.4f} nats: a suspicion of 50 % becomes at most {most}"

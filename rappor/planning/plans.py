"""Plan of a collection: parameters, their privacy losses, and the predicted detections.

`rappor.planning.planner` creates a plan. A terminal, JSON and a registry entry show the same
record.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from rappor.base.display import DisplayedRecord
from rappor.decoding.estimates import number_or_none
from rappor.planning.category_noise import choose_category_noise, compute_best_variance
from rappor.planning.detection_limit import compute_rare_variance
from rappor.planning.dimensions import compute_min_cohorts
from rappor.planning.entry import DESCRIPTION, OWNER, write_registry
from rappor.planning.noise import Budget, choose_noise, choose_published
from rappor.planning.power import DetectionTarget, Prediction, predict
from rappor.planning.set_design import design_sets
from rappor.privacy.small_cohorts import CohortFilling
from rappor.privacy.unchanged_values import list_unchanged_losses
from rappor.protocol import loss
from rappor.protocol.encodings import get_encoding
from rappor.protocol.encodings.sets import MAX_ITEMS
from rappor.protocol.params import Params
from rappor.registry.metric import MIN_COHORT, Metric

ERROR_REMEDIES: Final = {
    "noise": "privacy noise. To lower it, use more devices, more reports or a larger epsilon.",
    "sampling": "the sampling of devices. To lower it, use more devices.",
    "unexplained": "collisions with strings that stay unexplained. To lower it, use more cohorts.",
    "candidates": "collisions between candidates. To lower it, use more bits or more cohorts.",
}
"""Cause and remedy of each part of an error. The keys are the keys of `Prediction.parts`, and a
sentence ends with the text."""

_DEFAULT_EPOCH: Final = "quarter"
"""Epoch of a planned entry: the time for which a device repeats one permanent response. A longer
epoch reports old values, and a shorter epoch adds more losses in a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another design with the same privacy budget and number of cohorts.

    It also has the same number of bits, except for sets.

    Attributes
    ----------
    name : name of the design, such as "h = 1, symmetric".
    params : its parameters.
    variance : variance of a rare string's count from the noise of the reports alone, divided by the
        number of reports.
    excess : ratio of `variance` to the smallest known variance at epsilon_1.
    share : smallest detected share; None if no share is detected.
    """

    name: str
    params: Params
    variance: float
    excess: float
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan(DisplayedRecord):
    """Parameters, their privacy losses, and their predicted detections.

    Attributes
    ----------
    params : the parameters.
    budget : limits of the privacy losses. `epsilon_1` and `epsilon_inf` of the parameters do not
        exceed them.
    reports : number of reports of the prediction, of all devices.
    target : shares of the strings to detect, and how they are tested.
    prediction : predicted detections and errors.
    alternatives : designs with the same budget for comparison. The first is this plan itself.
    """

    _renderer: ClassVar[str] = "plan"

    params: Params
    budget: Budget
    reports: int
    target: DetectionTarget
    prediction: Prediction
    alternatives: tuple[Alternative, ...]

    @property
    def epsilon_1(self) -> float:
        """Privacy loss of one report, in nats."""
        return loss.epsilon_1(self.params)

    @property
    def epsilon_inf(self) -> float:
        """Privacy loss of any number of reports of one value, in nats."""
        return loss.epsilon_inf(self.params)

    @property
    def share(self) -> float | None:
        """Smallest share that is detected with the target's power; None if no share is detected."""
        return self.prediction.detectable_share

    @property
    def excess(self) -> float:
        """Variance of a rare string as a multiple of the smallest known variance at epsilon_1.

        The variance includes collisions. The smallest known variance is for one report per device.
        For sets it is the closed form, in which all buckets have the mean share. The decoder gives
        more weight to buckets without frequent items, so the result may be below 1.
        """
        best = compute_best_variance(self.params, self.budget.epsilon_1)
        return self.prediction.absent_std_error**2 * self.reports / best

    @property
    def binding(self) -> str:
        """Name of the largest part of the error, a key of `ERROR_REMEDIES`."""
        return max(self.prediction.parts, key=lambda name: self.prediction.parts[name])

    @property
    def filling(self) -> CohortFilling:
        """Distribution of the devices over cohorts, if each device reports in every interval.

        Its share is the expected proportion of cohorts that a collector can release.
        """
        least_m = 1
        if get_encoding(self.params).is_hashed:
            n_candidates = self.target.frequencies.n_candidates
            least_m = math.ceil(compute_min_cohorts(self.params.k, n_candidates))
        return CohortFilling(
            devices=round(self.reports / self.target.reports_per_device),
            m=self.params.m,
            min_cohort=MIN_COHORT,
            least_m=least_m,
        )

    def to_toml(
        self,
        name: str,
        *,
        expires: datetime.date,
        description: str = DESCRIPTION,
        owner: str = OWNER,
        epoch: str = _DEFAULT_EPOCH,
        interval: str | None = None,
    ) -> str:
        """Return the text of a registry with the planned metric.

        Reading the text returns exactly the same parameters.

        Parameters
        ----------
        name : name of the metric.
        expires : last day of the metric.
        description, owner, epoch : fields of the entry.
        interval : time in which a device reports once. The default is "day", or "epoch" if a report
            equals the permanent response.

        Raises
        ------
        MetricError
            A metric cannot have this name.
        """
        return write_registry(
            Metric(
                name=name,
                params=self.params,
                expires=expires,
                description=description,
                owner=owner,
                epoch=epoch,
                interval=interval or ("day" if self.params.has_instantaneous_noise else "epoch"),
            )
        )

    def _table(self) -> dict[str, list[Any]]:
        """Return the columns of a table of designs: this plan first, then the alternatives."""
        designs = [
            (design.name, design.params, design.excess, design.share)
            # The first alternative is this plan. Its `excess` is without collisions.
            for design in self.alternatives[1:]
        ]
        rows = [("this plan", self.params, self.excess, self.share), *designs]
        letters = list(dict.fromkeys(letter for _, params, *_ in rows for letter in params.letters))
        return {
            "name": [name for name, *_ in rows],
            **{letter: [getattr(params, letter) for _, params, *_ in rows] for letter in letters},
            "excess": [excess for *_, excess, _ in rows],
            "share": [share for *_, share in rows],
        }

    def to_dict(self, *, interval: str | None = None) -> dict[str, Any]:
        """Return the object that `rappor plan --json` prints.

        Parameters
        ----------
        interval : time in which a device reports once, for the losses of a value that stays the
            same. Without an interval, any number of reports is assumed.
        """
        prediction = self.prediction
        target = self.target.with_decoder_method(self.params, self.reports)
        return {
            **self.params.letters,
            "p_star": self.params.p_star,
            "q_star": self.params.q_star,
            "fingerprint": self.params.fingerprint,
            "epsilon_1": self.epsilon_1,
            "epsilon_inf": self.epsilon_inf,
            "budget": asdict(self.budget),
            "report_bytes": self.params.n_bytes,
            "encoding": self.params.encoding,
            "reports": self.reports,
            "reports_per_device": target.reports_per_device,
            "candidates": target.frequencies.n_candidates,
            "correction": target.error_control.method,
            "ranked": target.error_control.ranked,
            "level": target.error_control.alpha,
            "power": target.power,
            "confidence": target.error_control.confidence,
            "share": prediction.detectable_share,
            "found": prediction.expected_detections,
            "filled_cohorts": self.filling.share,
            "std_error": prediction.std_error,
            "rare_std_error": prediction.absent_std_error,
            "largest": prediction.largest_share,
            "largest_std_error": prediction.largest_std_error,
            "interval_width": prediction.width,
            "adjusted_interval_width": prediction.adjusted_width,
            "excess": self.excess,
            "parts": prediction.parts,
            "binding": self.binding,
            "staying": [
                {**asdict(row), "epsilon": number_or_none(row.epsilon)}
                for row in list_unchanged_losses(self.params, interval)
            ],
            "alternatives": [
                {
                    "name": design.name,
                    **design.params.letters,
                    "variance": design.variance,
                    "excess": design.excess,
                    "share": design.share,
                }
                for design in self.alternatives
            ],
        }


def build_plan(params: Params, n_reports: int, target: DetectionTarget, budget: Budget) -> Plan:
    """Build a plan: predict detections for the parameters and for alternative designs.

    The alternatives have the same number of cohorts. Except for sets, they also have the same
    number of bits.
    """
    alternatives = []
    for name, candidate in _list_alternatives(params, budget):
        variance = compute_rare_variance(candidate)
        alternatives.append(
            Alternative(
                name=name,
                params=candidate,
                variance=variance,
                excess=variance / compute_best_variance(params, budget.epsilon_1),
                share=predict(candidate, n_reports, target).detectable_share,
            )
        )
    return Plan(
        params=params,
        budget=budget,
        reports=n_reports,
        target=target,
        prediction=predict(params, n_reports, target),
        alternatives=tuple(alternatives),
    )


def _list_alternatives(params: Params, budget: Budget) -> Iterator[tuple[str, Params]]:
    """Yield names and parameters of designs with this budget, the planned design first."""
    yield "this one", params
    if get_encoding(params).supports_items:
        yield from _list_set_alternatives(params, budget)
        return
    if not get_encoding(params).is_hashed:
        yield from _list_categorical_alternatives(params, budget)
        return
    losses = (budget.epsilon_1, budget.epsilon_inf)
    k, m = params.k, params.m
    yield "h = 1, asymmetric", choose_noise(*losses, k=k, m=m)
    yield "h = 1, symmetric", choose_noise(*losses, k=k, m=m, symmetric=True)
    yield "h = 2, asymmetric", choose_noise(*losses, k=k, h=2, m=m)
    published = choose_published(*losses, k=k, m=m)
    if published is not None:
        yield "h = 2, p = 1/2 [EPK14]", published


def _list_set_alternatives(params: Params, budget: Budget) -> Iterator[tuple[str, Params]]:
    """Yield designs for half and for twice the largest number of items.

    The detected shares of the designs show the cost of a larger number. The cost of a smaller
    number is not in them: sets with more items are cut, which lowers the estimated shares.
    """
    for items in (params.items // 2, 2 * params.items):
        if 1 <= items <= MAX_ITEMS:
            yield f"items = {items}", design_sets(items, budget.epsilon_1, m=params.m)


def _list_categorical_alternatives(params: Params, budget: Budget) -> Iterator[tuple[str, Params]]:
    """Yield asymmetric and symmetric noise. If the two are equal, yield one design, "best"."""
    # Noise depends on the number of combinations of a tuple. Their names need fields.
    numbers = tuple(map(str, range(1, len(params.categories) + 1)))
    categories = numbers if params.field_names else params.categories
    designs = {
        name: choose_category_noise(
            budget, params.encoding, categories, symmetric=name == "symmetric"
        )
        for name in ("asymmetric", "symmetric")
    }
    if designs["asymmetric"] == designs["symmetric"]:
        yield "best", designs["symmetric"]
    else:
        yield from designs.items()

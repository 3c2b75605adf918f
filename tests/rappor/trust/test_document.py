"""The page about trust: its table equals the models."""

from __future__ import annotations

import math

import pytest
from places import ROOT

from rappor.trust.models import TrustModel, trust_models

FOLDER = ROOT / "rappor" / "trust"
DOCUMENT = (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("model", trust_models(1.0, 100_000), ids=lambda model: str(model.name))
def test_the_table_equals_the_models(model: TrustModel) -> None:
    """The row has the trusted party, both losses, the standard error and the tail."""
    collector = model.epsilon_of_collector
    cells = (
        model.name,
        model.trusted,
        "the truth" if math.isinf(collector) else f"{collector:.2f}",
        f"{model.epsilon_10:.2f}",
        f"{model.noise.std_error(30_000, 100_000):.1f}",
        f"{model.noise.tail(0.05, 30_000, 100_000):.1f}",
    )
    assert f"| {' | '.join(cells)} |" in DOCUMENT


def test_the_loss_to_the_collector_is_that_of_the_table() -> None:
    """The text repeats a number of the table."""
    shuffled = next(model for model in trust_models(1.0, 100_000) if model.delta)
    assert f"learns up to {shuffled.epsilon_of_collector:.2f} nats" in DOCUMENT

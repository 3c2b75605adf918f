"""A value's whole way to a report: arguments in another order are named, not their contents."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from rappor import Metric, Params, ParamsError, encode_value

SECRET = bytes(range(32))
METRIC = Metric(
    name="engine",
    params=Params.profile("strict"),
    description="d",
    owner="o",
    expires=datetime.date(2030, 1, 1),
    epoch="quarter",
)


@pytest.mark.parametrize(
    "arguments", [(METRIC, SECRET, "duckduckgo"), (SECRET, "duckduckgo", METRIC)]
)
def test_swapped_arguments_are_refused_by_their_types(arguments: Any) -> None:
    """The sentence shows the call as it is meant; neither secret nor value is in it."""
    with pytest.raises(ParamsError, match=r"call encode_value\(secret, metric, value\)") as caught:
        encode_value(*arguments)
    assert "duckduckgo" not in str(caught.value)
    assert repr(SECRET)[2:10] not in str(caught.value)

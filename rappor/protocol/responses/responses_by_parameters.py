"""The response of a parameter set: generalized randomized response if `keep` is given."""

from __future__ import annotations

from rappor.protocol.responses.generalized_response import GeneralizedResponse
from rappor.protocol.responses.rappor_response import RapporResponse
from rappor.protocol.responses.response import Response, ResponseParams


def get_response_class(keep: object) -> type[Response]:
    """Return the class of a response from the parameter `keep`, which only one response has.

    Parameters
    ----------
    keep : probability that a report is drawn from the own buckets; None for RAPPOR's responses.
    """
    return RapporResponse if keep is None else GeneralizedResponse


def get_response(params: ResponseParams) -> Response:
    """Return the response of a parameter set, to read its properties and to draw reports."""
    return get_response_class(params.keep)(params)

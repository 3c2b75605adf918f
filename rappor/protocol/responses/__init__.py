"""Responses: the mechanisms that randomize the bits of a value, and their privacy loss.

Each response is a class in a file of its own. Code outside this package never compares responses.
It reads a property of the response, such as `is_exclusive`.
"""

from rappor.protocol.responses.response import Response, ResponseParams
from rappor.protocol.responses.responses_by_parameters import get_response, get_response_class

__all__ = ["Response", "ResponseParams", "get_response", "get_response_class"]

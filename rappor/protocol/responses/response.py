"""The interface of a response: a mechanism that randomizes the true bits of a value.

A response has two stages:

1. The permanent response is drawn from coins of the device's secret. The device repeats it in all
   reports of a scope (one metric in one epoch under one permanent fingerprint, on one device).
2. The instantaneous response adds fresh noise to each report.

For one bit, both stages together are a binary channel: a true 0 is sent as 1 with probability p*,
and a true 1 with probability q*. Statistics depend on p* and q* and on the covariance of the bits
of one report.

A response defines its parameters, probabilities, privacy loss, coins, and the reports that a
collector refuses. To add a response, write a subclass of `Response` in a file beside this one, and
add test vectors. Privacy accounting and statistics follow from the properties of the class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from rappor.protocol.encodings import Encoding
from rappor.protocol.encodings.encoding import EncodingParams

Coins = Callable[[int], Sequence[int]]
"""A source of coins: a function that returns n uniform integers of 32 bits."""


class ResponseParams(EncodingParams, Protocol):
    """The part of `Params` that decides the response.

    `Params` imports the responses, so the responses cannot import `Params`.
    """

    @property
    def f(self) -> float:
        """Probability that the permanent response forces a bit."""

    @property
    def g(self) -> float:
        """Share of the forced bits that become 1."""

    @property
    def p(self) -> float:
        """Probability that a permanent 0 is sent as 1."""

    @property
    def q(self) -> float:
        """Probability that a permanent 1 is sent as 1."""

    @property
    def keep(self) -> float | None:
        """Probability that a report is drawn from the own buckets; None for RAPPOR's responses."""


@dataclass(frozen=True)
class Response(ABC):
    """A mechanism that randomizes true bits, under one parameter set.

    Class attributes hold for all parameter sets of the response. Instance properties depend on the
    parameter set `params`.
    """

    params: ResponseParams

    dimensions: ClassVar[tuple[str, ...]]
    """Names of the whole numbers of a parameter set."""

    probabilities: ClassVar[tuple[str, ...]]
    """Names of the probabilities of a parameter set."""

    keys_of_reports_only: ClassVar[tuple[str, ...]] = ("segment", "interval", "epoch")
    """Keys of the canonical JSON that do not change the permanent response. The permanent
    fingerprint leaves them out."""

    coin_label: ClassVar[bytes]
    """Beginning of the HKDF input of the permanent response's coins."""

    is_exclusive: ClassVar[bool] = False
    """Whether exactly one bit of a report is 1, so that the bits of a report exclude each other."""

    needs_interval_epoch: ClassVar[bool] = False
    """Whether a metric of a registry must have `interval = "epoch"`. A device then sends one report
    in each epoch, because a second report would be equal to the first report."""

    @classmethod
    @abstractmethod
    def check_encoding(cls, encoding: type[Encoding]) -> None:
        """Raise ParamsError for an encoding whose bits the response does not randomize."""

    @classmethod
    @abstractmethod
    def complete(cls, params: ResponseParams) -> Mapping[str, float]:
        """Check the probabilities of a parameter set, and return all its effective probabilities.

        Returns
        -------
        dict of float
            f, g, p, q and, if the response has it, keep. p, q, keep and the products f g and
            f (1 - g) are probabilities that 32-bit coins produce. They differ from the arguments by
            2^-33 at most, and f by 2^-32.

        Raises
        ------
        ParamsError
            A probability is outside its range, or belongs to another response.
        """

    @abstractmethod
    def check_secure(self) -> None:
        """Raise ParamsError if one report can reveal the value with certainty."""

    @property
    @abstractmethod
    def f1(self) -> float:
        """Probability that a true 0 becomes a permanent 1."""

    @property
    @abstractmethod
    def f0(self) -> float:
        """Probability that a true 1 becomes a permanent 0."""

    @property
    @abstractmethod
    def p_star(self) -> float:
        """Probability p* that a true 0 is sent as 1."""

    @property
    @abstractmethod
    def q_star(self) -> float:
        """Probability q* that a true 1 is sent as 1."""

    @property
    def regression_probabilities(self) -> tuple[float, float]:
        """Probabilities p' and q' of a bit in the regression on hashed candidates.

        The expected proportion of ones at bit i of cohort j is p' + (q' - p') y, where

            y = sum of the shares of the candidates with bit i + (1 - sum of all shares) density

        and density is the probability that a random string sets the bit. p* and q* fulfil the
        equation for a device with one value.
        """
        return self.p_star, self.q_star

    @property
    @abstractmethod
    def has_instantaneous_noise(self) -> bool:
        """Whether reports differ from the permanent response."""

    @abstractmethod
    def compute_loss(self, reports: Mapping[Any, int] | None) -> float:
        """Return the privacy loss of reports of one value, in nats.

        Parameters
        ----------
        reports : number of reports by parameter set; None for any number of reports. All parameter
            sets have one permanent fingerprint.
        """

    def compute_covariance(self, first: Any, second: Any) -> Any:
        """Return the covariance of two different bits in the report of a random device.

        The value of a device sets at most one of the two bits, as categories do. If each bit has
        noise of its own, the bits depend on each other through the value only, and the covariance
        is -(mu_1 - p*) (mu_2 - p*). If a report has exactly one 1, it is -mu_1 mu_2.

        Parameters
        ----------
        first, second : probabilities mu_1 and mu_2 that the bits are 1; numbers, or arrays that
            numpy multiplies.
        """
        mean_of_zero = 0.0 if self.is_exclusive else self.p_star
        return -(first - mean_of_zero) * (second - mean_of_zero)

    @property
    @abstractmethod
    def canonical_keys(self) -> dict[str, int]:
        """Keys of the canonical JSON that only this response has, with integer values."""

    @classmethod
    @abstractmethod
    def read_canonical_keys(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Remove the keys of this response from a canonical object, and return arguments of Params.

        The reader compares the canonical JSON of the result with the text, so wrong types need no
        check here.
        """

    def find_fault(self, bits: int) -> str:  # noqa: ARG002  (most responses can send any bits)
        """Return the reason for which a collector refuses the bits of a report.

        Parameters
        ----------
        bits : the k bits of the report; bit i of the integer is bit i of the report.

        Returns
        -------
        str
            A sentence without the bits; empty if an honest device can send them.
        """
        return ""

    @property
    @abstractmethod
    def n_coins(self) -> int:
        """Number of coins of the permanent response."""

    def choose_own_buckets(self, bits: bytes, coins: Coins) -> list[int]:  # noqa: ARG002  (none)
        """Return the own buckets of a value after padding or cutting, in ascending order.

        The list is empty for a response whose reports name no bucket.
        """
        return []

    @abstractmethod
    def draw_permanent(self, bits: bytes, coins: Coins) -> bytes:
        """Return the packed permanent response to packed true bits."""

    @abstractmethod
    def draw_instantaneous(self, permanent: bytes, coins: Coins) -> bytes:
        """Return the packed bits of a report of a packed permanent response."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Randomization in words, for the privacy notice that a person reads."""

"""Generalized randomized response (GRR): a report names one of k buckets.

A value owns some of k buckets: a category owns one, and a set of items owns the bucket of each
item. The device pads or cuts them to exactly n own buckets. Then, with T = t(keep),

- with probability keep = T / 2^32, the report names one of the n own buckets,
- otherwise it names one of all k buckets.

The probabilities that the report names a certain bucket are

    p* = (1 - keep) / k        a bucket that is not an own bucket
    q* = keep / n + p*         an own bucket

On the wire, a report is the vector of k bits in which exactly the bit of this bucket is 1. The bits
of a report exclude each other: the covariance of bits i and l is -mu_i mu_l, where mu is the
probability of a 1.

Example: the categories light and dark have k = 3 buckets (the third bucket is for any other value)
and n = 1. With keep = 0.947, p* = 0.0177 and q* = 0.9647, and a report loses ln(q* / p*) = 4 nats.

The response depends on the secret, the scope and the true bits alone, so all reports of a value are
equal, and any number of reports loses as much as one report. The loss covers the whole set: its
items and their number.

A device pads its set with distinct buckets before it draws. The bucket of an item is then named
with probability q* in every set of at most n items, so the counts show the share of the devices
that have the item. The alternative, to draw one item of the set first, would name an item of a
large set less often than the item of a small set. Bad case: a set with more than n buckets is cut
to n of them, so the share of its items is estimated too low.

Two values in one scope add their losses. A device reports two values in a scope only if an older
copy of its folder is restored.

GRR for categories is k-ary randomized response [KBR16]. For sets it is PrivSet [Wang18] with a
report of one bucket.

[KBR16] Kairouz, Bonawitz, Ramage. Discrete Distribution Estimation under Local Privacy. ICML 2016.
[Wang18] Wang et al. PrivSet: Set-Valued Data Analyses with Locale Differential Privacy. INFOCOM
2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_number
from rappor.protocol.encodings import Encoding
from rappor.protocol.responses.response import Coins, Response, ResponseParams
from rappor.protocol.thresholds import ONE, compute_threshold

_NEUTRAL: Final = {"h": 1, "f": 0.0, "g": 0.5, "p": 0.0, "q": 1.0}
"""RAPPOR's parameters in a parameter set of GRR. They stand for one hash function (h) and for noise
that changes no bit: no bit is forced (f = 0), a permanent 0 is sent as 0 (p = 0), a permanent 1 as
1 (q = 1). g is the share of forced bits that become 1. With f = 0 it has no effect, so it has the
default of `Params`."""


class GeneralizedResponse(Response):
    """Generalized randomized response: a report names one bucket, often one of the own buckets."""

    dimensions: ClassVar[tuple[str, ...]] = ("k", "m", "items")
    probabilities: ClassVar[tuple[str, ...]] = ("keep",)
    coin_label: ClassVar[bytes] = b"rappor/1/grr\0"
    is_exclusive: ClassVar[bool] = True
    # A metric reports once an epoch. A second report of the epoch would be equal to the first
    # report. It would add no information, but link the two reports.
    needs_interval_epoch: ClassVar[bool] = True

    @classmethod
    def check_encoding(cls, encoding: type[Encoding]) -> None:
        """Raise ParamsError unless the encoding is one-hot, buckets or set (`supports_grr`).

        The bits of other encodings, such as the Bloom bits of a string, have less variance under
        RAPPOR.
        """
        if not encoding.supports_grr:
            raise ParamsError(f"keep must be absent for encoding {encoding.name}")

    @classmethod
    def complete(cls, params: ResponseParams) -> Mapping[str, float]:
        """Check `keep`, and return the effective probabilities.

        h, f, g, p and q must be absent, or have the values that a parameter set of GRR already has,
        because `dataclasses.replace` passes them again.
        """
        for letter, neutral in _NEUTRAL.items():
            if (value := getattr(params, letter)) not in (None, neutral):
                raise ParamsError(f"{letter} must be absent beside keep, got {value!r}")
        check_number("keep", params.keep, "(0, 1)")
        assert params.keep is not None
        threshold = compute_threshold(params.keep)
        if not 0 < threshold < ONE:
            raise ParamsError(f"keep must be in [2^-32, 1 - 2^-32], got {params.keep!r}")
        # With n = k every bucket would be an own bucket, and a report would depend on no value.
        if params.items >= params.k:
            raise ParamsError(
                f"items must be less than k, got items = {params.items} and k = {params.k}"
            )
        return {**_NEUTRAL, "keep": threshold / ONE}

    def check_secure(self) -> None:
        """Accept every parameter set: with keep < 1, no report reveals a value with certainty."""

    @property
    def t_keep(self) -> int:
        """Threshold T of `keep`, the probability that a report is drawn from the own buckets."""
        return compute_threshold(self._keep)

    @property
    def f1(self) -> float:
        """Probability that a bit that is no own bucket becomes a permanent 1: p*."""
        return self.p_star

    @property
    def f0(self) -> float:
        """Probability that a bit of an own bucket becomes a permanent 0: 1 - q*."""
        return 1 - self.q_star

    @property
    def p_star(self) -> float:
        """Probability p* that a bucket that is not an own bucket is named: (1 - keep) / k."""
        return (1 - self._keep) / self.params.k

    @property
    def q_star(self) -> float:
        """Probability q* that an own bucket is named: keep / n + p*."""
        return self._keep / self.params.items + self.p_star

    @property
    def regression_probabilities(self) -> tuple[float, float]:
        """Probabilities p' and q' of a bucket in the regression on items.

        The regression assumes that a device owns one bucket. These are the p' and q' with which
        such a response has the same mean as GRR with n own buckets. Let a share pi of the devices
        have an item. A device without the item owns its bucket all the same with probability n / k,
        averaged over hashes. So a report names the bucket of the item with probability

            pi q* + (1 - pi) ((n / k) q* + (1 - n / k) p*)
                = constant + pi (q* - p*) (k - n) / k

        A response with one own bucket has n = 1, and p' and q' in place of p* and q*. Its factor of
        pi is (q' - p') (k - 1) / k. The factors are equal if, with q* - p* = keep / n,

            q' - p' = keep / n (k - n) / (k - 1)

        The probabilities of all k buckets sum to 1, q' + (k - 1) p' = 1, so

            p' = (1 - (q' - p')) / k

        With n = 1 they are p* and q*. Without the factor (k - n) / (k - 1) every share would be too
        low. Under the profile `once`, 8 items have k = 464 buckets, and shares would be 1.5 % too
        low. With a loss of 1 nat they have 40 buckets, and shares would be 18 % too low.
        """
        n, k = self.params.items, self.params.k
        gap = self._keep / n * (k - n) / (k - 1)
        low = (1 - gap) / k
        return low, low + gap

    @property
    def has_instantaneous_noise(self) -> bool:
        """False: a report is the permanent response itself."""
        return False

    def compute_loss(self, reports: Mapping[Any, int] | None) -> float:  # noqa: ARG002  (all equal)
        """Return the privacy loss of one report, or of any number of reports of one value, in nats.

        It is ln(1 + T ceil(2^32 / n) / ((2^32 - T) floor(2^32 / k))): an own bucket has at most
        ceil(2^32 / n) of the coins that choose one of n, and every bucket at least
        floor(2^32 / k) of the coins that choose one of k.
        """
        t, n, k = self.t_keep, self.params.items, self.params.k
        return math.log1p(t * -(-ONE // n) / ((ONE - t) * (ONE // k)))

    @property
    def canonical_keys(self) -> dict[str, int]:
        """The number of own buckets, and the threshold of `keep`."""
        return {"items": self.params.items, "keep": self.t_keep}

    @classmethod
    def read_canonical_keys(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Read the number of own buckets and the threshold of `keep`."""
        return {"items": document.pop("items"), "keep": document.pop("keep") / ONE}

    def find_fault(self, bits: int) -> str:
        """Return a sentence unless exactly one of the k bits is 1."""
        return "" if bits.bit_count() == 1 else "bits must have exactly one 1"

    @property
    def n_coins(self) -> int:
        """A coin for each own bucket, a coin compared with T, and a coin that draws the bucket."""
        return self.params.items + 2

    def choose_own_buckets(self, bits: bytes, coins: Coins) -> list[int]:
        """Pad or cut the own buckets of a value to n buckets, in ascending order.

        Parameters
        ----------
        bits : packed true bits. They may have more or fewer than n ones.
        coins : source of the response's coins, of which the first n are used.
        """
        n, k, u = self.params.items, self.params.k, coins(self.n_coins)
        true_bits = int.from_bytes(bits, "little")
        buckets = [i for i in range(k) if true_bits >> i & 1]
        if len(buckets) > n:
            remaining_buckets = buckets
            buckets = [remaining_buckets.pop(u[i] * len(remaining_buckets) >> 32) for i in range(n)]
        else:
            free = [i for i in range(k) if not true_bits >> i & 1]
            buckets += [free.pop(u[i] * len(free) >> 32) for i in range(n - len(buckets))]
        return sorted(buckets)

    def draw_permanent(self, bits: bytes, coins: Coins) -> bytes:
        """Name one of the n own buckets with probability `keep`, and one of all k otherwise.

        Returns
        -------
        bytes
            Packed bits, of which exactly one is 1.
        """
        # `coins` returns the same numbers at every call, because they follow from the secret. So
        # `choose_own_buckets` uses the first n of these coins.
        n, k, u = self.params.items, self.params.k, coins(self.n_coins)
        buckets = self.choose_own_buckets(bits, coins)
        bucket = buckets[u[n + 1] * n >> 32] if u[n] < self.t_keep else u[n + 1] * k >> 32
        return (1 << bucket).to_bytes(self.params.n_bytes, "little")

    def draw_instantaneous(self, permanent: bytes, coins: Coins) -> bytes:  # noqa: ARG002  (none)
        """Return the permanent response: a second report of a value is the same report."""
        return permanent

    @property
    def description(self) -> str:
        """The noise in one sentence: the probability of an own bucket, and any bucket otherwise."""
        n, k = self.params.items, self.params.k
        own = "the bucket of its value" if n == 1 else f"one of the {n} buckets of its items"
        return (
            f"The device names one of {k:,} buckets: {own} with {100 * self._keep:.3g} % "
            "probability, otherwise any of them, drawn at random."
        )

    @property
    def _keep(self) -> float:
        assert self.params.keep is not None
        return self.params.keep

"""RAPPOR's two responses: each bit is randomized on its own, once permanently and once per report.

Let f1 = f g be the probability that a true 0 becomes a permanent 1, and f0 = f (1 - g) the
probability that a true 1 becomes a permanent 0. [EPK14] has g = 1/2. A permanent 0 is sent as 1
with probability p, and a permanent 1 with probability q. Together,

    p* = p + (q - p) f1        a true 0 is sent as 1
    q* = q - (q - p) f0        a true 1 is sent as 1

Privacy loss
------------
Given the permanent bits, the reports are independent, and so are the bits. The loss therefore
follows from a single bit, in two directions:

- `up`: the observation is the strongest evidence for a true 1. Every report shows a 1 at the bit.
- `down`: the observation is the strongest evidence for a true 0. Every report shows a 0.

The encoding then says in how many bits, and in which direction, two values differ. Two strings with
h hash functions differ in at most h bits in each direction, so their loss is h (up + down). For n
reports,

    up   = ln [ ((1 - f0) q^n + f0 p^n) / (f1 q^n + (1 - f1) p^n) ]
    down = ln [ ((1 - f1) (1-p)^n + f1 (1-q)^n) / (f0 (1-p)^n + (1 - f0) (1-q)^n) ]

Example: f1 = f0 = 0.25, p = 0.5, q = 0.75 and h = 2 lose epsilon_1 = 1.07 nats, and epsilon_inf =
2 h ln((1 - 0.25) / 0.25) = 4.39 nats ([EPK14] section 5.2).

[EPK14] states n = 1 (Theorem 2) and the limit n to infinity (Theorem 1), both for f1 = f0 = f/2. It
leaves n reports open. The formula above fills the gap. Tests compare it with an enumeration of all
coins.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict, cast

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_number
from rappor.protocol.encodings import Encoding, get_encoding
from rappor.protocol.responses.response import Coins, Response, ResponseParams
from rappor.protocol.thresholds import ONE, compute_threshold


class Noise(TypedDict):
    """The probabilities of a parameter set of RAPPOR, as keyword arguments of `Params`."""

    f: float
    g: float
    p: float
    q: float


class RapporResponse(Response):
    """Permanent and instantaneous response of [EPK14], with separate probabilities of 0 and 1."""

    dimensions: ClassVar[tuple[str, ...]] = ("k", "h", "m")
    probabilities: ClassVar[tuple[str, ...]] = ("f", "g", "p", "q")
    keys_of_reports_only: ClassVar[tuple[str, ...]] = ("p", "q", "segment", "interval", "epoch")
    coin_label: ClassVar[bytes] = b"rappor/1/permanent\0"

    @classmethod
    def check_encoding(cls, encoding: type[Encoding]) -> None:
        """Raise ParamsError for an encoding whose reports name a single bucket."""
        if not encoding.supports_rappor:
            raise ParamsError(f"keep must be given for encoding {encoding.name}, got none")

    @classmethod
    def complete(cls, params: ResponseParams) -> Mapping[str, float]:
        """Check f, g, p and q, and return the effective probabilities."""
        check_number("f", params.f, "[0, 1)")
        check_number("g", params.g, "[0, 1]")
        check_number("p", params.p, "[0, 1]")
        check_number("q", params.q, "[0, 1]")
        response = cls(params)
        _check_thresholds(response)
        noise = compute_noise(response.t_1, response.t_0, response.t_p, response.t_q)
        return cast("dict[str, float]", noise)

    def check_secure(self) -> None:
        """Raise ParamsError if one report can reveal a true bit with certainty.

        - If no bit is forced to 1 and p = 0, a true 0 is never sent as 1: a 1 proves a true 1.
        - If no bit is forced to 0 and q = 1, a true 1 is always sent as 1: a 0 proves a true 0.
        """
        if self.t_1 == 0 and self.t_p == 0:
            condition = "f g must be greater than 0 where p is 0"
        elif self.t_0 == 0 and self.t_q == ONE:
            condition = "f (1 - g) must be greater than 0 where q is 1"
        else:
            return
        raise ParamsError(
            f"{condition}, got f = {self.params.f:g} and g = {self.params.g:g}, under which one "
            "report reveals the value; set insecure to allow it"
        )

    @property
    def t_1(self) -> int:
        """Threshold of f g, the probability that the permanent response forces a bit to 1."""
        return compute_threshold(self.params.f * self.params.g)

    @property
    def t_0(self) -> int:
        """Threshold of f (1 - g), the probability that it forces a bit to 0."""
        return compute_threshold(self.params.f * (1 - self.params.g))

    @property
    def t_p(self) -> int:
        """Threshold of p."""
        return compute_threshold(self.params.p)

    @property
    def t_q(self) -> int:
        """Threshold of q. It may be 2^32, which does not fit into 32 bits."""
        return compute_threshold(self.params.q)

    @property
    def f1(self) -> float:
        """Probability that a true 0 becomes a permanent 1: f g, and f/2 in [EPK14]."""
        return self.t_1 / ONE

    @property
    def f0(self) -> float:
        """Probability that a true 1 becomes a permanent 0: f (1 - g), and f/2 in [EPK14]."""
        return self.t_0 / ONE

    @property
    def p_star(self) -> float:
        """Probability p* that a true 0 is sent as 1: p + (q - p) f g.

        For g = 1/2 it is f (p + q) / 2 + (1 - f) p ([EPK14] Lemma 1).
        """
        return self.params.p + (self.params.q - self.params.p) * self.f1

    @property
    def q_star(self) -> float:
        """Probability q* that a true 1 is sent as 1: q - (q - p) f (1 - g).

        For g = 1/2 it is f (p + q) / 2 + (1 - f) q ([EPK14] Lemma 1).
        """
        return self.params.q - (self.params.q - self.params.p) * self.f0

    @property
    def has_instantaneous_noise(self) -> bool:
        """Whether reports differ from the permanent response: False for p = 0 and q = 1.

        [EPK14] calls a response without instantaneous noise One-time RAPPOR.
        """
        return self.t_p > 0 or self.t_q < ONE

    def compute_loss(self, reports: Mapping[ResponseParams, int] | None) -> float:
        """Return the privacy loss of reports of one value, in nats.

        n = 1 gives [EPK14] Theorem 2, and the limit n to infinity gives [EPK14] Theorem 1. A change
        of p and q keeps the permanent response. Given the permanent response, the reports are
        independent, so the log-likelihoods of all reports add.
        """
        if reports is None:
            # Infinitely many reports show the permanent bit with certainty: the ratio of its two
            # states is 0.
            log_ratio_of_ones = log_ratio_of_zeros = -math.inf
        else:
            # Log-likelihood of the observation under the less likely permanent bit, less the
            # log-likelihood under the more likely one. All reports show a 1 (or all a 0).
            log_ratio_of_ones = sum(
                n * _log_ratio(params.p, params.q) for params, n in reports.items()
            )
            log_ratio_of_zeros = sum(
                n * _log_ratio(1 - params.q, 1 - params.p) for params, n in reports.items()
            )
        # For ones the target state is a permanent 1: a true 0 gets into it with f1, and a true 1
        # out of it with f0. For zeros the roles are exchanged.
        f1, f0 = self.f1, self.f0
        up = _compute_bit_loss(f1, f0, log_ratio_of_ones)
        down = _compute_bit_loss(f0, f1, log_ratio_of_zeros)
        return get_encoding(self.params).compute_largest_loss(up, down)

    @property
    def canonical_keys(self) -> dict[str, int]:
        """The number of hash functions, and the thresholds of the four probabilities."""
        # Thresholds and not probabilities: integers have one spelling in every language.
        keys = {"h": self.params.h, "f": self.t_1, "p": self.t_p, "q": self.t_q}
        # Absent if both forced probabilities are equal, so one parameter set has one text.
        if self.t_0 != self.t_1:
            keys["f0"] = self.t_0
        return keys

    @classmethod
    def read_canonical_keys(cls, document: dict[str, Any]) -> dict[str, Any]:
        """Read the number of hash functions and the four thresholds."""
        t_1 = document.pop("f")
        t_0 = document.pop("f0", t_1)  # absent if both forced probabilities are equal
        noise = compute_noise(t_1, t_0, document.pop("p"), document.pop("q"))
        return {"h": document.pop("h"), **noise}

    @property
    def n_coins(self) -> int:
        """One coin for each bit."""
        return self.params.k

    def draw_permanent(self, bits: bytes, coins: Coins) -> bytes:
        """Force each bit to 1 with probability f g and to 0 with f (1 - g), and keep it otherwise.

        [EPK14] section 2 has f/2 for both.
        """
        # A coin in [0, t_1) forces the bit to 1, a coin in [t_1, t_1 + t_0) forces the bit to 0,
        # and any other coin keeps the true bit.
        end_of_ones, end_of_zeros = self.t_1, self.t_1 + self.t_0
        true_bits = int.from_bytes(bits, "little")
        response = 0
        for i, u in zip(range(self.params.k), coins(self.params.k), strict=True):
            if u < end_of_ones:
                bit = 1
            elif u < end_of_zeros:
                bit = 0
            else:
                bit = true_bits >> i & 1
            response |= bit << i
        return response.to_bytes(self.params.n_bytes, "little")

    def draw_instantaneous(self, permanent: bytes, coins: Coins) -> bytes:
        """Send each bit as 1 with probability q if it is 1, and with p if it is 0 ([EPK14] 2)."""
        thresholds = self.t_p, self.t_q
        permanent_bits = int.from_bytes(permanent, "little")
        response = 0
        for i, u in zip(range(self.params.k), coins(self.params.k), strict=True):
            bit = u < thresholds[permanent_bits >> i & 1]
            response |= bit << i
        return response.to_bytes(self.params.n_bytes, "little")

    @property
    def description(self) -> str:
        """Bits that are flipped at random."""
        return "The device flips some of its bits at random before it sends a report."


def compute_noise(t_1: int, t_0: int, t_p: int, t_q: int) -> Noise:
    """Return the probabilities f, g, p and q of four thresholds.

    Parameters
    ----------
    t_1, t_0 : thresholds with which the permanent response forces a bit to 1 and to 0.
    t_p, t_q : thresholds with which the instantaneous response sends a 0 and a 1 as 1.
    """
    forced = t_1 + t_0
    # Without forced bits (f = 0), g has no meaning. The default 1/2 makes equal sets equal.
    g = 0.5 if t_1 == t_0 else t_1 / forced
    return {"f": forced / ONE, "g": g, "p": t_p / ONE, "q": t_q / ONE}


def _check_thresholds(response: RapporResponse) -> None:
    """Raise ParamsError if rounding to thresholds destroys the order or the sign of the noise."""
    params = response.params
    # With t(p) = t(q) a report says nothing about the value, and q* - p* = 0 divides the counts.
    if response.t_p >= response.t_q:
        raise ParamsError(
            f"p must be less than q by at least 2^-32, got p = {params.p!r} and q = {params.q!r}"
        )
    forced = response.t_1 + response.t_0
    # A tiny f rounds to no noise at all, which would break the promise of the caller silently.
    if forced == 0 and params.f != 0:
        raise ParamsError(f"f must be 0 or at least 2^-32, got {params.f!r}")
    # With all coins forced, the permanent response would not depend on the value.
    if forced >= ONE:
        raise ParamsError(f"f must be less than 1 by at least 2^-31, got {params.f!r}")


def _log_ratio(low: float, high: float) -> float:
    """Return ln(low / high) of two probabilities, low <= high; -infinity for low = 0."""
    # log1p keeps the digits of close probabilities. For distant ones, low - high loses the digits
    # of low.
    if low > high / 2:
        return math.log1p((low - high) / high)
    return math.log(low / high) if low > 0 else -math.inf


def _compute_bit_loss(into: float, out_of: float, log_r: float) -> float:
    """Return the largest log-likelihood ratio of the two true values of one bit, in nats.

    The observation is the strongest evidence for one state of the permanent bit, the target state.

    Parameters
    ----------
    into : probability that the permanent response forces the opposite true bit into the target
        state.
    out_of : probability that it forces an equal true bit out of the target state.
    log_r : log-likelihood of the observation in the other state, less that in the target state.

    Notes
    -----
    With r = exp(log_r), the likelihood ratio is

        (1 - out_of + out_of r) / (into + (1 - into) r)

    The code writes the ratio as 1 + (1 - into - out_of) (1 - r) / (into + (1 - into) r), in which
    nothing cancels for small losses.
    """
    if into == 0:
        # The opposite true bit never reaches the target state. With log_r = -infinity the
        # observation proves the true bit, and the loss is infinite.
        return -log_r + math.log1p(out_of * math.expm1(log_r))
    p_unforced = 1 - into - out_of
    return math.log1p(p_unforced * -math.expm1(log_r) / (into + (1 - into) * math.exp(log_r)))

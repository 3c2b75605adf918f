"""Params: the parameter set of a metric, its thresholds, effective probabilities and fingerprints.

How to think about a parameter set
----------------------------------
A parameter set belongs to one of two mechanisms (`rappor.protocol.responses`): RAPPOR's two
responses, or generalized randomized response (GRR), whose reports name one bucket.

Under RAPPOR, a device turns a value into noisy bits in three steps, and `Params` contains the
numbers of all three:

1. The encoding sets some of k bits ([EPK14] section 2, "Signal"). Strings are hashed by h hash
   functions, which differ between m cohorts.
2. The permanent response forces a bit with probability f, whatever the true bit is. The share g of
   the forced bits becomes 1, and the rest becomes 0. The device repeats this response in all its
   reports ([EPK14] section 2, "Permanent randomized response", with g = 1/2).
3. The instantaneous response sends a permanent 0 as 1 with probability p, and a permanent 1 as 1
   with probability q. Each report draws it anew ([EPK14] section 2, "Instantaneous randomized
   response").

Together, a true 0 arrives as 1 with probability p*, and a true 1 with probability q*. Example: with
f = 0.5, g = 0.5, p = 0.25 and q = 0.75, p* = 0.375 and q* = 0.625.

All letters but g are those of [EPK14]. A smaller g detects more rare strings at the same
privacy loss, because almost all true bits of a rare string's cohort are 0 and fewer of them become
1.

Under GRR, a value owns some of the k buckets: a category owns one bucket, and a set owns the bucket
of each item. A parameter set has k, m, the number of own buckets of each value (`items`) and the
probability `keep` that a report is drawn from the own buckets. It has no h, f, g, p and q: these
attributes have the values of a response that changes no bit (h = 1, f = p = 0, q = 1). f1, f0, p*
and q* describe one bit of a report under both mechanisms.

Probabilities are integers. A coin is a uniform integer u of 32 bits, and an event of threshold t
happens if u < t. Its probability is exactly t / 2^32. `Params` rounds probabilities to thresholds
and keeps the effective probabilities, so privacy accounting, simulation and decoding use the
probabilities of the real device, and devices in different languages agree.

Equal parameter sets have equal fingerprints. A report carries the fingerprint, so a collector
recognises a report that was made under other parameters.

[EPK14] Erlingsson, Pihur, Korolova. RAPPOR. CCS 2014, arXiv 1407.6981.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from dataclasses import InitVar, dataclass
from typing import Any, Final, cast

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice, check_integer, format_value
from rappor.protocol.encodings import get_encoding, get_encoding_class
from rappor.protocol.encodings.bloom import DEFAULT_LAYOUT
from rappor.protocol.encodings.sets import DEFAULT_ITEMS, MAX_ITEMS
from rappor.protocol.normalizers import NORMALIZERS
from rappor.protocol.parts import check_part_name
from rappor.protocol.profiles import (
    MAX_GRR_CATEGORIES,
    compute_keep_threshold,
    compute_set_buckets,
    get_profile,
)
from rappor.protocol.responses import Response, get_response, get_response_class
from rappor.protocol.responses.rappor_response import RapporResponse, compute_noise
from rappor.protocol.segments import Segment, check_segment
from rappor.protocol.thresholds import ONE, compute_threshold
from rappor.protocol.tuples import check_field_names, check_normalizers

MAX_BITS: Final = 2040
"""Largest number of bits of a report, k. The permanent response needs four bytes of HKDF output for
each bit, and HKDF-Expand-SHA256 returns at most 255 * 32 bytes."""

MAX_HASHES: Final = 16
"""Largest number of hash functions, h. The privacy loss grows in proportion to h."""

MAX_COHORTS: Final = 65536
"""Largest number of cohorts, m. Collectors keep counts for each cohort, so it bounds their
memory."""

LETTERS: Final = (*RapporResponse.dimensions, *RapporResponse.probabilities)
"""Names of the numbers of a parameter set of RAPPOR: k, h and m, then f, g, p and q."""

NOISE_LETTERS: Final = RapporResponse.probabilities
"""Names of the probabilities of a parameter set of RAPPOR: f, g, p and q."""

EPOCHS: Final = ("life", "year", "quarter", "month")
"""Kinds of epochs. In each epoch a device has one permanent response of its value. The losses of
several epochs add up, so shorter epochs lose more over a year."""

INTERVALS: Final = ("day", "week", "epoch")
"""Kinds of intervals. A device sends at most one report of a metric in each interval, so shorter
intervals give more reports of the same devices."""

EXCLUDED_DAYS: Final = 8
"""Number of days at the end of an epoch that a device never draws for its one report of the epoch:
one day until the report leaves, and seven days for retries. Without them, a report of the last day
would leave in the next epoch. It would take the turn of the next epoch's report, which would then
be late as well."""

_ABSENT: Final = cast("float", None)
"""Default of the probabilities that one of the responses does not have. No range contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """The parameter set of a metric: device and decoder must agree on it to the last bit.

    After construction, f, g, p, q and keep are the effective probabilities of the 32-bit
    thresholds. p, q, keep and the products f g and f (1 - g) differ from the arguments by 2^-33 at
    most. f is the sum of the two products and differs by 2^-32 at most. g is a quotient and
    differs by 2^-33 / f at most. A tiny f therefore changes g: f = 1e-9 and g = 0.3 give g = 0.25.

    Parameters
    ----------
    k : number of bits of a report, 1 to 2040; at least 2 for strings.
    h : number of hash functions, 1 to 16; 1 for encodings that do not hash.
    m : number of cohorts, 1 to 65536; 1 for encodings that do not hash.
    items : GRR only. Number of own buckets after padding or cutting, 1 to 64 for sets; 1 for other
        encodings.
    keep : GRR only. Probability that a report is drawn from the own buckets, in (0, 1). With
        `keep`, f, g, p and q must be absent.
    f : probability that the permanent response forces a bit, in [0, 1).
    g : share of the forced bits that become 1, in [0, 1]. [EPK14] has 1/2.
    p : probability that a 0 of the permanent response is sent as 1, in [0, 1].
    q : probability that a 1 of the permanent response is sent as 1, in [0, 1] and above p.
    encoding : "bloom" for strings, "onehot" for categories, "boolean", "buckets" for numbers, or
        "set" for sets of strings.
    categories : names of the categories of a one-hot encoding, or edges of buckets as decimal
        texts (`buckets.format_edge`), in bit order.
    field_names : names of the fields of a tuple, 2 to 8, in their order; empty for other values.
        The categories of a one-hot encoding are then all combinations (`combine_categories`).
    normalize : name of the normalizer that device and analyst apply to texts. For a tuple, "none",
        or one name for each field, separated by commas.
    layout : name of the hash layout. Devices support "rappor-1" only; counts of other software
        have other layouts.
    part : part of a string that the reports contain: "prefix:N", "whole", or empty for metrics
        without parts.
    segment : public properties of the devices, sent without noise. Empty if devices send none.
    interval, epoch : interval and epoch of a metric in a registry. Both are empty outside a
        registry.
    insecure : whether to allow parameters under which one report can reveal the value.

    Raises
    ------
    ParamsError
        An argument is outside its range, or one report can reveal the value.

    Examples
    --------
    >>> params = Params(k=128, h=2, m=8, f=0.5, p=0.25, q=0.75)
    >>> params.p_star, params.q_star
    (0.375, 0.625)
    >>> params.fingerprint
    'f17fbbc225b4229f'
    """

    k: int
    h: int = 1
    m: int = 1
    f: float = _ABSENT
    g: float = 0.5
    p: float = _ABSENT
    q: float = _ABSENT
    items: int = 1
    keep: float | None = None
    encoding: str = "bloom"
    categories: tuple[str, ...] = ()
    field_names: tuple[str, ...] = ()
    normalize: str = "none"
    layout: str = DEFAULT_LAYOUT
    part: str = ""
    segment: Segment = ()
    interval: str = ""
    epoch: str = ""
    insecure: InitVar[bool] = False

    def __post_init__(self, insecure: bool) -> None:
        """Check every field. All other code trusts the fields without further checks."""
        # An unknown encoding is refused first, because it decides which other fields are allowed.
        encoding = get_encoding_class(self.encoding)
        _check_fields(self.field_names, self.normalize)
        _check_layout(self.layout)
        check_part_name(self.part)
        check_segment(self.segment)
        _check_calendar(self.interval, self.epoch)
        check_integer("k", self.k, encoding.min_bits, MAX_BITS)
        check_integer("h", self.h, 1, MAX_HASHES)
        check_integer("m", self.m, 1, MAX_COHORTS)
        check_integer("items", self.items, 1, MAX_ITEMS)
        response = get_response_class(self.keep)
        response.check_encoding(encoding)
        encoding.check_params(self)
        # Replace the arguments by the probabilities that 32-bit coins really produce. Losses and
        # estimates that used the arguments would describe a device that does not exist.
        for name, probability in response.complete(self).items():
            object.__setattr__(self, name, probability)
        if not insecure:
            self.response.check_secure()

    @classmethod
    def profile(
        cls,
        name: str,
        *,
        encoding: str = "bloom",
        categories: tuple[str, ...] = (),
        field_names: tuple[str, ...] = (),
        normalize: str = "none",
        items: int = DEFAULT_ITEMS,
    ) -> Params:
        """Return the parameters of a named profile for an encoding.

        A profile promises two privacy losses. Its parameters have the least variance of all
        parameters that keep the promise. Strings have k = 128, h = 1 and m = 128, and sets have
        m = 128.

        Parameters
        ----------
        name : "strict", "balanced", "low-noise" or "once".
        encoding, categories, field_names, normalize : as for `Params`.
        items : number of own buckets of a set; ignored for other encodings.

        Raises
        ------
        ParamsError
            The profile or the encoding is unknown, the categories do not fit the encoding, or the
            profile is not for the encoding.

        Examples
        --------
        >>> from rappor import epsilon_1, epsilon_inf
        >>> params = Params.profile("balanced")
        >>> round(epsilon_1(params), 4), round(epsilon_inf(params), 4)
        (2.0, 4.0)
        """
        profile = get_profile(name)
        encoding_class = get_encoding_class(encoding)
        # Without this check the error would be of k, which no caller of this function passes.
        if encoding_class.has_category_values and not categories:
            raise ParamsError(f"categories must be given for encoding {encoding}, got none")
        k = encoding_class.count_bits(categories)
        m = 128 if encoding_class.is_hashed else 1
        values: dict[str, Any] = {
            "encoding": encoding,
            "categories": categories,
            "field_names": field_names,
            "normalize": normalize,
        }
        if not (profile.supports_grr and encoding_class.supports_grr):
            if not encoding_class.supports_rappor:
                raise ParamsError(f"profile must be once for encoding {encoding}, got {name!r}")
            noise = compute_noise(*profile.select_thresholds(k))
            return cls(k=128 if k is None else k, m=m, **noise, **values)
        if encoding_class.has_category_values and len(categories) > MAX_GRR_CATEGORIES:
            raise ParamsError(
                f"categories must number at most {MAX_GRR_CATEGORIES} under the profile {name}, "
                f"got {len(categories)}: candidates of encoding bloom have the smaller variance"
            )
        if encoding_class.supports_items:
            check_integer("items", items, 1, MAX_ITEMS)
            k = compute_set_buckets(profile.epsilon_1, items)
        else:
            assert k is not None
            # One bucket more is for values outside the categories.
            k, items = k + 1, 1
        keep = compute_keep_threshold(profile.epsilon_1, k, items) / ONE
        return cls(k=k, m=m, items=items, keep=keep, **values)

    @property
    def response(self) -> Response:
        """The mechanism that randomizes the bits: its loss, its coins, the covariance of bits."""
        return get_response(self)

    @property
    def letters(self) -> dict[str, int | float]:
        """The numbers of the parameter set by name: dimensions, then probabilities."""
        response = self.response
        names = (*response.dimensions, *response.probabilities)
        return {name: getattr(self, name) for name in names}

    @property
    def field_categories(self) -> tuple[tuple[str, ...], ...]:
        """Categories of each field of a one-hot tuple, in the order of `field_names`.

        `categories` are all combinations, in which the last field varies fastest. The property is
        empty for tuples of hashed strings and for values without fields.
        """
        return get_encoding(self).field_categories

    @property
    def has_other_bucket(self) -> bool:
        """Whether the last bit stands for every value outside the categories or buckets."""
        return self.keep is not None and bool(self.categories)

    @property
    def t_1(self) -> int:
        """Threshold of f g. 0 under GRR, where the coins of a bit have no threshold."""
        return compute_threshold(self.f * self.g)

    @property
    def t_0(self) -> int:
        """Threshold of f (1 - g). 0 under GRR, where the coins of a bit have no threshold."""
        return compute_threshold(self.f * (1 - self.g))

    @property
    def t_p(self) -> int:
        """Threshold of p."""
        return compute_threshold(self.p)

    @property
    def t_q(self) -> int:
        """Threshold of q. It may be 2^32, which does not fit into 32 bits."""
        return compute_threshold(self.q)

    @property
    def f1(self) -> float:
        """Probability that a true 0 becomes a permanent 1: f g, and f/2 in [EPK14]."""
        return self.response.f1

    @property
    def f0(self) -> float:
        """Probability that a true 1 becomes a permanent 0: f (1 - g), and f/2 in [EPK14]."""
        return self.response.f0

    @property
    def p_star(self) -> float:
        """Probability p* that a true 0 is sent as 1."""
        return self.response.p_star

    @property
    def q_star(self) -> float:
        """Probability q* that a true 1 is sent as 1."""
        return self.response.q_star

    @property
    def n_bytes(self) -> int:
        """Length of the bits of a report, in bytes: ceil(k / 8)."""
        return (self.k + 7) // 8

    @property
    def has_instantaneous_noise(self) -> bool:
        """Whether reports differ from the permanent response.

        Without instantaneous noise, every report shows the permanent response itself, and one
        report loses epsilon_inf.
        """
        return self.response.has_instantaneous_noise

    @property
    def density(self) -> float:
        """Probability that a random string sets a given bit: 1 - (1 - 1/k)^h."""
        return float(-math.expm1(self.h * math.log1p(-1 / self.k))) if self.k > 1 else 1.0

    def with_segment(self, segment: Segment) -> Params:
        """Return the same parameters for the devices of a segment."""
        return dataclasses.replace(self, segment=segment, insecure=True)

    @property
    def without_segment(self) -> Params:
        """The same parameters for devices that send no segment."""
        return self.with_segment(()) if self.segment else self

    def __hash__(self) -> int:
        """Hash the fields in which parameter sets differ most.

        A device looks parameter sets up two dozen times for each report. Hashing all fields took a
        noticeable part of that time.
        """
        return hash((self.k, self.f, self.p, self.q, self.keep, self.part))

    @property
    def pace(self) -> str:
        """Time in which a device sends at most one report: an interval, or a whole epoch.

        The pace is empty for parameters outside a registry.
        """
        return self.epoch if self.interval == "epoch" else self.interval

    @property
    def fingerprint(self) -> str:
        """First 8 bytes of the SHA-256 of the canonical JSON, as 16 hex digits."""
        return _compute_fingerprints(self)[0]

    @property
    def permanent_fingerprint(self) -> str:
        """SHA-256 of the canonical JSON without the keys of single reports: 64 hex digits.

        These keys are p, q, segment, interval and epoch.

        In one epoch of a metric, two parameter sets with equal permanent fingerprints have one
        permanent response, so their reports together lose epsilon_inf at most. Any other two sets
        have independent permanent responses. So have two epochs, because the input of the coins
        contains the name of the epoch (`randomizer.encode_scope`).

        The hash is not truncated. An attacker who writes registries could find two sets with eight
        equal bytes in about 2^32 attempts, and devices would reuse coins under other parameters.
        """
        return _compute_fingerprints(self)[1]

    def _build_canonical_object(self) -> dict[str, Any]:
        """Return the object whose canonical JSON the fingerprints hash.

        A key whose field has its default is absent, so a later version can add fields without a
        change of existing fingerprints.
        """
        identity: dict[str, Any] = {
            "v": 1,
            "encoding": self.encoding,
            "k": self.k,
            "m": self.m,
            **self.response.canonical_keys,
        }
        if self.categories:
            identity["categories"] = _hash_names(self.categories)
        if self.field_names:
            identity["fields"] = _hash_names(self.field_names)
        if self.normalize != "none":
            identity["normalize"] = self.normalize
        if self.layout != DEFAULT_LAYOUT:
            identity["layout"] = self.layout
        if self.part:
            identity["part"] = self.part
        if self.segment:
            identity["segment"] = dict(self.segment)
        if self.interval:
            # A device with an older registry may report daily where the new registry has weekly
            # reports. The two intervals have different fingerprints, so a collector recognises the
            # older device and expects its daily reports.
            identity |= {"interval": self.interval, "epoch": self.epoch}
        return identity

    def to_json(self) -> str:
        """Return the parameter set as one line of JSON with integer thresholds.

        Integers are exact in every language, where decimals would be rounded differently.

        Examples
        --------
        >>> Params(k=8, f=0.5, p=0.25, q=0.75).to_json()
        '{"encoding":"bloom","f":1073741824,"h":1,"k":8,"m":1,"p":1073741824,"q":3221225472,"v":1}'
        """
        document = self._build_canonical_object()
        if self.categories:
            document["categories"] = list(self.categories)
        if self.field_names:
            document["fields"] = list(self.field_names)
        return _write_canonical_json(document)

    @classmethod
    def from_json(cls, text: str) -> Params:
        """Read a parameter set that `to_json` wrote.

        Insecure parameters are allowed: their author had to allow them when he made them.

        Raises
        ------
        ParamsError
            The text is not exactly what `to_json` writes, up to the order of keys and spaces.
        """
        try:
            document = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
            written = _write_canonical_json(document)
            if not isinstance(document, dict) or document.pop("v", None) != 1:
                raise ParamsError("parameters must be a JSON object of version 1")
            response = get_response_class(document.get("keep"))
            document |= response.read_canonical_keys(document)
            document["categories"] = tuple(document.get("categories", ()))
            document["field_names"] = tuple(document.pop("fields", ()))
            document["segment"] = tuple(sorted(dict(document.get("segment", ())).items()))
            params = cls(**document, insecure=True)
        except ParamsError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise ParamsError(
                f"parameters must be JSON as written by Params.to_json, got {type(error).__name__}"
            ) from None
        # Python accepts more than `to_json` writes: 1.0 or true for 1, a text for a list of
        # letters, a threshold with a fraction. Each would be a second spelling of one set.
        if params.to_json() != written:
            raise ParamsError("parameters must be JSON as written by Params.to_json")
        return params


@functools.lru_cache(maxsize=1024)
def _compute_fingerprints(params: Params) -> tuple[str, str]:
    """Return fingerprint and permanent fingerprint; a device needs them a dozen times a report."""
    identity = params._build_canonical_object()
    fingerprint = _hash_object(identity)[:16]
    # Only the remaining keys change the permanent response.
    for key in params.response.keys_of_reports_only:
        identity.pop(key, None)
    return fingerprint, _hash_object(identity)


def _hash_object(document: dict[str, Any]) -> str:
    return hashlib.sha256(_write_canonical_json(document).encode()).hexdigest()


def _hash_names(names: tuple[str, ...]) -> str:
    """Return the SHA-256 of names, in hex, which keeps the canonical JSON short.

    Bad case: two lists of names with one joined text would have one fingerprint. No name contains
    a line feed, so the joined text can be split in one way only.
    """
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


def _write_canonical_json(document: dict[str, Any]) -> str:
    # ensure_ascii=False: JavaScript's JSON.stringify escapes no letters either.
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object from its pairs; raise ParamsError if a key occurs twice."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ParamsError("parameters must be a JSON object in which no key stands twice")
    return entries


def _check_fields(field_names: object, normalizer: object) -> None:
    """Raise ParamsError unless the names of fields and the normalizer are valid."""
    if field_names == ():
        check_choice("normalize", normalizer, NORMALIZERS)
        return
    check_field_names(field_names)
    check_normalizers(normalizer, len(cast("tuple[str, ...]", field_names)))


def _check_calendar(interval: str, epoch: str) -> None:
    """Raise ParamsError unless interval and epoch are both empty or both valid."""
    if (interval, epoch) == ("", ""):
        return
    check_choice("interval", interval, INTERVALS)
    check_choice("epoch", epoch, EPOCHS)


def _check_layout(layout: object) -> None:
    """Raise ParamsError unless a hash layout has a name that can be hashed."""
    if not isinstance(layout, str) or not layout:
        raise ParamsError(f"layout must be a non-empty name, got {format_value(layout)}")
    if any(0xD800 <= ord(c) < 0xE000 for c in layout):
        raise ParamsError("layout must be valid Unicode, got a lone surrogate")

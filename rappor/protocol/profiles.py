"""Profiles: named noise levels of protocol version 1, and the thresholds that keep their promises.

A profile promises two privacy losses: epsilon_1 for one report, and epsilon_inf for any number of
reports of one value. For each encoding, the table below has the response with the least variance
among all responses that keep the promise. The planner computed the table (`rappor.planning.noise`),
and a test compares the table with the planner.

Under "once", whose metrics send one report in each epoch, categories, buckets and sets use
generalized randomized response (GRR). The threshold of `keep` is the largest threshold that keeps
the promise, and the number of buckets of a set has the least variance for a rare item
(`compute_set_buckets`). With 2 to 24 categories and 4 nats, separate noise of each bit needs 2 to 5
times as many devices for a share of 2 %, and 1.2 to 1.5 times for 50 %.

A released profile never changes. Its thresholds are part of fingerprints, and devices in use have
reserved their privacy budget by its losses.

Example: "balanced" promises epsilon_1 = 2 and epsilon_inf = 4 nats. For strings it has the
thresholds t_1 = 114842485 (a bit is forced to 1 with probability 0.027), t_0 = 1717986919 (to 0
with 0.40), t_p = 435686857 (a 0 is sent as 1 with 0.10) and t_q = 3288681509 (a 1 with 0.77).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rappor.base.errors import ParamsError
from rappor.base.ranges import check_choice
from rappor.protocol.thresholds import ONE

Thresholds = tuple[int, int, int, int]
"""The type of a row of the table: t_1, t_0, t_p and t_q as `rappor.protocol.params.Params` defines
them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The promise of a profile and the thresholds that keep it.

    Attributes
    ----------
    epsilon_1 : largest privacy loss of one report, in nats.
    epsilon_inf : largest privacy loss of any number of reports of one value, in nats.
    strings : thresholds for strings with h = 1, k = 128 and m = 128.
    categories : thresholds for 2, 3, 4 ... categories or buckets. They are optimal for a category
        of the mean share 1/k. Empty if the profile uses GRR for categories.
    boolean : thresholds for yes or no.
    supports_grr : whether the profile is for one report in each epoch, as GRR is.
    """

    epsilon_1: float
    epsilon_inf: float
    strings: Thresholds
    categories: tuple[Thresholds, ...]
    boolean: Thresholds
    supports_grr: bool = False

    def select_thresholds(self, k: int | None) -> Thresholds:
        """Return the thresholds of an encoding with k bits.

        Parameters
        ----------
        k : 1 for yes or no, at least 2 for categories or buckets, None for strings.
        """
        if k == 1:
            return self.boolean
        if k is not None and k < 2 + len(self.categories):
            return self.categories[k - 2]
        # One of many categories is as rare as a string, and the optimum for a rare value is the
        # same: two categories differ in one bit in each direction, like strings with h = 1.
        return self.strings


MAX_GRR_CATEGORIES: Final = 128
"""Largest number of categories of a one-hot encoding under a profile with GRR. Beyond about 165
categories and 4 nats, the bits of a string have the smaller variance."""


def compute_keep_threshold(epsilon: float, k: int, n: int) -> int:
    """Return the largest threshold T of `keep` under which a report of GRR loses at most epsilon.

    The loss is ln(1 + T ceil(2^32 / n) / ((2^32 - T) floor(2^32 / k))), which increases with T.

    Parameters
    ----------
    epsilon : promised loss, in nats.
    k : number of buckets.
    n : number of own buckets.

    Examples
    --------
    >>> compute_keep_threshold(4, k=3, n=1)
    4067311411
    """
    # The loss is epsilon if T / (2^32 - T) = (e^epsilon - 1) floor(2^32 / k) / ceil(2^32 / n). The
    # equation is solved with integers: in binary64, T could be one too large. Python's fractions
    # would do, too, but every device would have to load them.
    numerator, denominator = math.expm1(epsilon).as_integer_ratio()
    numerator *= ONE // k
    denominator *= -(-ONE // n)
    return ONE * numerator // (numerator + denominator)


def compute_set_buckets(epsilon: float, n: int) -> int:
    """Return the number of buckets of a set that has the least variance for a rare item.

    With E = e^epsilon - 1, the variance is least for k = n x with

        x = ((3 + E) + sqrt((3 + E)^2 + 4 E)) / 2

    The result is rounded to whole bytes of a report, and is in [n + 1, 2040].

    Parameters
    ----------
    epsilon : promised loss, in nats.
    n : number of own buckets.

    Examples
    --------
    >>> [compute_set_buckets(4, n) for n in (1, 8, 64)]
    [56, 464, 2040]
    """
    e = math.expm1(epsilon)
    x = ((3 + e) + math.sqrt((3 + e) ** 2 + 4 * e)) / 2
    return min(max(8 * math.floor(n * x / 8 + 0.5), n + 1), 2040)


def get_profile(name: object) -> Profile:
    """Return a profile by name; raise ParamsError for an unknown name."""
    # "accurate" was a profile before "low-noise" replaced it. Registries may still contain it.
    if name == "accurate":
        raise ParamsError(
            f"profile must be one of {', '.join(PROFILES)}, got 'accurate': low-noise loses less "
            "and finds as many strings"
        )
    check_choice("profile", name, PROFILES)
    return PROFILES[str(name)]


# fmt: off
_PROFILES_WITH_INSTANTANEOUS_NOISE: Final = {
    "strict": Profile(
        epsilon_1=1,
        epsilon_inf=2,
        strings=(609596425, 1932735284, 809924847, 3241849941),
        categories=(
            (1155094610, 1155094610, 1009333258, 3285634038),
            (949416191, 1386859730, 961020909, 3254616760),
            (848938123, 1522869066, 933348125, 3252268073),
            (787711196, 1614926828, 915989479, 3258566964),
            (746012653, 1682172655, 904177066, 3267567989),
            (715603846, 1733759813, 895649073, 3277141579),
            (692366622, 1774730440, 889216051, 3286466819),
            (673992157, 1808128691, 884197219, 3295233677),
            (659077484, 1835916137, 880176212, 3303346465),
            (646717417, 1859420305, 876884628, 3310801973),
            (636300127, 1879574872, 874141913, 3317635999),
            (627396370, 1897057265, 871822277, 3323898940),
            (619695665, 1912371816, 869835461, 3329644507),
            (612967622, 1925902231, 868115062, 3334924593),
            (607037536, 1937945917, 866611168, 3339787117),
            (601770433, 1948737139, 865285547, 3344275318),
            (597060323, 1958463049, 864108437, 3348427722),
            (592822784, 1967275033, 863056327, 3352278439),
            (588989719, 1975296920, 862110399, 3355857578),
            (585505570, 1982631010, 861255422, 3359191690),
            (582324554, 1989362584, 860478935, 3362304203),
            (579408591, 1995563317, 859770646, 3365215811),
            (576725750, 2001293898, 859121981, 3367944826),
        ),
        boolean=(511972652, 511972652, 844441824, 3450525472),
    ),
    "balanced": Profile(
        epsilon_1=2,
        epsilon_inf=4,
        strings=(114842485, 1717986919, 435686857, 3288681509),
        categories=(
            (511972652, 511972652, 844441824, 3450525472),
            (379739428, 682228672, 719353547, 3321431336),
            (318182373, 800046752, 656314239, 3256437170),
            (280763966, 891305313, 617581442, 3220129553),
            (254998423, 965991380, 591155805, 3199427209),
            (235906461, 1029187848, 571904811, 3188122488),
            (221055383, 1083886574, 557230458, 3182841277),
            (209096094, 1132017467, 545665183, 3181583176),
            (199212046, 1174906941, 536312999, 3183087926),
            (190876188, 1213510219, 528594112, 3186525100),
            (183731107, 1248540339, 522115940, 3191328332),
            (177524747, 1280544936, 516602809, 3197100771),
            (172073590, 1309954457, 511855263, 3203558276),
            (167240443, 1337113808, 507725329, 3210493849),
            (162920430, 1362303867, 504100867, 3217754580),
            (159031833, 1385756564, 500895312, 3225226252),
            (155509921, 1407665720, 498040770, 3232822816),
            (152302675, 1428195020, 495483230, 3240479038),
            (149367752, 1447483978, 493179190, 3248145256),
            (146670299, 1465652490, 491093218, 3255783595),
            (144181335, 1482804353, 489196163, 3263365183),
            (141876540, 1499030021, 487463825, 3270868079),
            (139735341, 1514408796, 485875946, 3278275722),
        ),
        boolean=(77250184, 77250184, 450944016, 3844023280),
    ),
    "low-noise": Profile(
        epsilon_1=4,
        epsilon_inf=6,
        strings=(21647411, 1411121890, 75050773, 3446626191),
        categories=(
            (203692575, 203692575, 340585176, 3954382120),
            (146323016, 282026196, 257394220, 3848549466),
            (120392011, 339936362, 218445761, 3776534755),
            (104791650, 387307093, 194709549, 3721716772),
            (94088980, 427965557, 178339506, 3677660494),
            (86162010, 463872878, 166196272, 3641080188),
            (79987409, 496192846, 156742913, 3610035856),
            (75002717, 525682880, 149125829, 3583272496),
            (70869684, 552868463, 142827770, 3559925275),
            (67371026, 578131732, 137514551, 3539369881),
            (64359924, 601760807, 132959358, 3521139275),
            (61733120, 623979248, 129002117, 3504874067),
            (59415588, 644964611, 125526205, 3490291285),
            (57351324, 664860669, 122444385, 3477163852),
            (55497564, 683785758, 119689931, 3465306608),
            (53821012, 701838643, 117210825, 3454566497),
            (52295302, 719102757, 114965842, 3444815500),
            (50899252, 735649322, 112921836, 3435945423),
            (49615619, 751539711, 111051817, 3427864007),
            (48430206, 766827241, 109333558, 3420491937),
            (47331205, 781558576, 107748571, 3413760541),
            (46308699, 795774826, 106281337, 3407609970),
            (45354297, 809512430, 104918720, 3401987766),
        ),
        boolean=(10619836, 10619836, 66961489, 4228005807),
    ),
}
# fmt: on
PROFILES: Final[Mapping[str, Profile]] = _PROFILES_WITH_INSTANTANEOUS_NOISE | {
    "once": Profile(
        epsilon_1=4,
        epsilon_inf=4,
        strings=(77250184, 2147483648, 0, 4294967296),
        categories=(),
        boolean=(77250184, 77250184, 0, 4294967296),
        supports_grr=True,
    ),
}
"""All profiles by name. "once" is for metrics with one report in each epoch. Strings and yes or no
have no instantaneous noise, so one report loses epsilon_inf. Categories, buckets and sets use
generalized randomized response, whose threshold `compute_keep_threshold` computes."""

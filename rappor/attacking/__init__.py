"""Attack: what someone who sees many reports learns, and what someone who forges them moves.

`longitudinal` is the observer of one device over time, with and without the permanent response;
`poisoning` is the forger. Both are demonstrations: the bounds that hold against every attack are
those of `rappor.privacy`, and what links reports of a device is in `rappor.linking`.
"""

from rappor.attacking.longitudinal import Learned, learn, permanent_bits_known
from rappor.attacking.poisoning import Forgery, Moved, detectable_share, forge, shift

__all__ = [
    "Forgery",
    "Learned",
    "Moved",
    "detectable_share",
    "forge",
    "learn",
    "permanent_bits_known",
    "shift",
]

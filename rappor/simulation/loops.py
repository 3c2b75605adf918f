"""The simulator's loops over packed bits: compiled, or by numpy alone."""

try:
    from rappor.simulation.compiled_loops import (
        add_devices,
        break_ties,
        compare,
        pick,
        set_hashed,
    )
except ImportError:  # there is no compiler: several times slower, and equal
    from rappor.simulation.plain_loops import (
        add_devices,
        break_ties,
        compare,
        pick,
        set_hashed,
    )

__all__ = ["add_devices", "break_ties", "compare", "pick", "set_hashed"]
